//! A run as the command that would be typed to do it again, with every default filled in.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use plimsoll_pipeline::PlaceRequest;
use plimsoll_plan::Line;

use crate::args::{Cli, DeviceName, GenerateArgs, OffloadName, Verb};
use crate::failure::Failure;

/// The arguments of `plimsoll` for a run; `place` and `device` replace what was left to defaults.
pub(crate) fn of(
    args: &GenerateArgs,
    place: Option<&PlaceRequest>,
    device: Option<&str>,
    guidance: Option<f32>,
) -> Vec<String> {
    let run = &args.run;
    let mut command = Words(vec!["generate".to_owned()]);
    command.option("--model", Some(model(&run.model)));
    command.option("--transformer", run.transformer.as_deref().map(absolute));
    let sizes = place.map(|place| &place.run);
    command.option("--width", sizes.map(|run| run.width).or(run.width));
    command.option("--height", sizes.map(|run| run.height).or(run.height));
    command.option("--steps", sizes.map(|run| run.steps).or(run.steps));
    command.option("--count", Some(run.count));
    command.option("--text-tokens", sizes.map(|run| run.text_tokens).or(run.text_tokens));
    command.option("--vram", Some(line(run.vram.0)));
    let typed = match run.device {
        DeviceName::Auto => "auto".to_owned(),
        DeviceName::Cuda(index) => format!("cuda:{index}"),
        DeviceName::Cpu => "cpu".to_owned(),
        DeviceName::Sim => "sim".to_owned(),
    };
    let found = device.filter(|_| run.device == DeviceName::Auto).map(str::to_owned);
    command.option("--device", Some(found.unwrap_or(typed)));
    for folder in &run.cuda_lib_dir {
        command.option("--cuda-lib-dir", Some(absolute(folder)));
    }
    command.option("--kernels", Some(name(run.kernels)));
    command.option("--dtype", Some(&run.dtype));
    command.option("--offload", Some(name(run.offload)));
    if run.offload == OffloadName::Group {
        command.option("--blocks-per-group", Some(run.blocks_per_group));
    }
    command.option("--prefetch", Some(name(run.prefetch)));
    command.option("--hoist", Some(name(run.hoist)));
    command.option("--vae-tile", run.vae_tile);
    command.option("--host-tier", Some(name(run.host_tier)));
    command.option("--ram", run.ram.map(|size| size.0));
    command.option("--threads", run.threads);
    if run.calibrate {
        command.0.push("--calibrate".to_owned());
    }
    command.option("--guidance", guidance.or(args.guidance));
    command.option("--seed", Some(args.seed));
    command.option("--noise", Some(name(args.noise)));
    command.option("--output", Some(absolute(&args.output)));
    command.0.extend(["--".to_owned(), args.prompt.clone()]);
    command.0
}

struct Words(Vec<String>);

impl Words {
    fn option(&mut self, name: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.0.extend([name.to_owned(), value.to_string()]);
        }
    }
}

/// The options that a recorded command stands for.
pub(crate) fn parse(command: &[String]) -> Result<GenerateArgs, Failure> {
    let words = ["plimsoll".to_owned()].into_iter().chain(command.iter().cloned());
    match Cli::read(words).map(|cli| cli.verb) {
        Ok(Verb::Generate(args)) => Ok(args),
        Ok(_) => Err(Failure::Usage("the recorded command is not a run".to_owned())),
        Err(error) => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default().to_owned();
            Err(Failure::Usage(format!("the recorded command is not understood: {first}")))
        }
    }
}

/// As a person would type it.
pub(crate) fn typed(command: &[String]) -> String {
    let quoted = command.iter().map(|word| {
        let is_plain = !word.is_empty()
            && word
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || "-_./:%=+,".contains(letter));
        if is_plain { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) }
    });
    format!("plimsoll {}", quoted.collect::<Vec<_>>().join(" "))
}

/// The value of an option, where it is given.
pub(crate) fn get<'w>(command: &'w [String], option: &str) -> Option<&'w str> {
    let end = command.iter().position(|word| word == "--").unwrap_or(command.len());
    let at = command[..end].iter().position(|word| word == option)?;
    command[..end].get(at + 1).map(String::as_str)
}

/// Replaces the value of an option, or adds it.
pub(crate) fn set(command: &mut Vec<String>, option: &str, value: &str) {
    let end = command.iter().position(|word| word == "--").unwrap_or(command.len());
    match command[..end].iter().position(|word| word == option) {
        Some(at) if at + 1 < end => value.clone_into(&mut command[at + 1]),
        _ => {
            command.splice(end..end, [option.to_owned(), value.to_owned()]);
        }
    }
}

/// Replaces the prompt.
pub(crate) fn set_prompt(command: &mut Vec<String>, prompt: &str) {
    if let Some(at) = command.iter().position(|word| word == "--") {
        command.truncate(at + 1);
        command.push(prompt.to_owned());
    }
}

/// The line as it can be typed again: exact.
pub(crate) fn line(line: Line) -> String {
    match line {
        Line::Bytes(bytes) => bytes.to_string(),
        other => other.to_string(),
    }
}

fn model(model: &str) -> String {
    if model == "demo" { model.to_owned() } else { absolute(Path::new(model)) }
}

fn absolute(path: impl Into<PathBuf>) -> String {
    let path = path.into();
    std::path::absolute(&path).unwrap_or(path).display().to_string()
}

/// A closed choice, as it is typed.
pub(crate) fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
