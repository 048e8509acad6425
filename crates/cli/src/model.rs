//! Which model a name means.

use std::path::Path;

use plimsoll_models::FluxModel;
use plimsoll_pipeline::Assembled;

use crate::args::RunArgs;
use crate::dtypes::Stored;
use crate::failure::Failure;
use crate::{demo, request};

/// The pipeline of a run, which is stored as its `--dtype` says.
pub(crate) fn open(args: &RunArgs) -> Result<Assembled, Failure> {
    let mut assembled = open_named(&args.model, args.transformer.as_deref())?;
    request::check_text_tokens(args, assembled.defaults())?;
    apply_dtypes(args, &mut assembled)?;
    Ok(assembled)
}

/// The pipeline that `--model` and `--transformer` name.
pub(crate) fn open_named(model: &str, transformer: Option<&Path>) -> Result<Assembled, Failure> {
    let mut assembled = if model == "demo" {
        if demo::FILES.is_empty() {
            let what = "this build carries no demo model: give its folder, --model demo/model";
            return Err(Failure::Usage(what.to_owned()));
        }
        Assembled::open_embedded(demo::FILES)?
    } else if known(model).is_some() {
        let what = format!("{model} is known by its shapes only: give a folder with weights");
        return Err(Failure::Usage(what));
    } else {
        Assembled::open_folder(model)?
    };
    if let Some(path) = transformer {
        assembled.replace_transformer(path)?;
    }
    Ok(assembled)
}

/// A model that can be planned from its published shapes, without files.
pub(crate) fn known(name: &str) -> Option<FluxModel> {
    match name {
        "flux.1-dev" => Some(FluxModel::dev()),
        "flux.1-schnell" => Some(FluxModel::schnell()),
        _ => None,
    }
}

/// Whether a model is known by its shapes only and not as one that runs: its plans are forecasts.
pub(crate) fn is_forecast(name: &str) -> bool {
    plimsoll_ledger::known(name).is_ok_and(|model| !model.runs())
}

/// Makes the pipeline what `--dtype` says of its components: what is stored wider is put in 8 bits on its way to the
/// device; what is stored in 8 bits does not become bf16 again.
fn apply_dtypes(args: &RunArgs, assembled: &mut Assembled) -> Result<(), Failure> {
    for (component, stored) in args.dtype.parts() {
        let is_narrow = assembled.is_narrow(component).unwrap_or(false);
        match stored {
            // The transformer: nothing else is given in fp8.
            Stored::Fp8 if !is_narrow => assembled.narrow_transformer()?,
            Stored::Bf16 if is_narrow => {
                return Err(Failure::Usage(format!(
                    "the {component} of {} is stored as fp8: \
                     bf16 needs the folder that it was packed from",
                    args.model
                )));
            }
            _ => {}
        }
    }
    Ok(())
}
