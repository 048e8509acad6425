//! Which components a pack has, and where it may be written.

use std::fs;
use std::path::Path;

use plimsoll_models::flux;

use crate::failure::Failure;
use crate::new_folder::{failure, real};

/// Components with weights.
pub(super) const COMPONENTS: [&str; 4] = [flux::CLIP, flux::T5, flux::TRANSFORMER, flux::VAE];

/// Refuses an output that is the model's folder, lies in it, holds it, or is in use.
pub(super) fn check_places(model: &Path, output: &Path) -> Result<(), Failure> {
    let shown = output.display();
    let refuse = |what: &str| Err(Failure::Usage(format!("{shown} {what}")));
    match fs::read_dir(output) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                return refuse("is not empty");
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(_) => return refuse("is not a folder"),
    }
    let place = real(output).map_err(failure(output))?;
    // The demo model is in the program, and what is no folder is refused when it is opened.
    if let Ok(model) = model.canonicalize() {
        if place == model {
            return refuse("is the model's own folder");
        }
        if place.starts_with(&model) {
            return refuse("lies in the model's folder");
        }
    }
    Ok(())
}
