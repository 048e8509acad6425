//! What the planner says to a change of a recorded run.

use plimsoll_pipeline::{Assembled, PipelineError};
use plimsoll_plan::PlanError;
use plimsoll_record::next::{Change, Expected, Planner};
use plimsoll_record::{Axis, Signal};

use crate::args::GenerateArgs;
use crate::dtypes::DTypes;
use crate::executor::Executor;
use crate::failure::Failure;
use crate::runs::command;
use crate::{model, request};

/// The planner of a run that this program made.
pub(crate) struct OwnPlanner {
    command: Vec<String>,
    assembled: Assembled,
    executor: Executor,
}

impl OwnPlanner {
    /// Opens what the run was made of.
    pub(crate) fn open(words: &[String]) -> Result<Self, Failure> {
        let args = command::parse(words)?;
        let executor = Executor::find_for_plan(&args.run)?;
        Ok(Self { command: words.to_vec(), assembled: open(&args, &executor)?, executor })
    }

    fn plan(&self, args: &GenerateArgs, is_same_model: bool) -> Result<Expected, Failure> {
        // Weights of other numbers are another opening of the files.
        let opened = if is_same_model { None } else { Some(open(args, &self.executor)?) };
        let assembled = opened.as_ref().unwrap_or(&self.assembled);
        let place = request::place_request(&args.run, assembled.defaults());
        let graph = assembled.graph(&place.run)?;
        let machine = self.executor.machine(&args.run, &graph)?;
        match assembled.plan(&place, machine.as_ref()) {
            Ok(planned) => Ok(Expected {
                fits: true,
                peak_vram: Some(planned.plan.predicted.vram_process_bytes),
                seconds: Some(planned.plan.predicted.seconds_total),
            }),
            Err(PipelineError::Plan(PlanError::Infeasible { smallest_bytes, .. })) => {
                Ok(Expected { fits: false, peak_vram: Some(smallest_bytes), seconds: None })
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The model of a run, with the host memory that its options leave it.
fn open(args: &GenerateArgs, executor: &Executor) -> Result<Assembled, Failure> {
    let mut assembled = model::open(&args.run)?;
    assembled.limit_host(request::host_limits(&args.run, executor.shares_ram()));
    Ok(assembled)
}

impl Planner for OwnPlanner {
    fn expect(&mut self, change: Option<&Change>) -> Option<Expected> {
        let mut words = self.command.clone();
        for (field, value) in change.into_iter().flat_map(|change| &change.set) {
            apply(&mut words, field, value).ok()?;
        }
        let args = command::parse(&words).ok()?;
        // What cannot be planned at all does not fit.
        let is_same_model = change.is_none_or(|change| change.axis != Axis::Quantization);
        Some(self.plan(&args, is_same_model).unwrap_or_default())
    }

    fn lacks(&self, axis: Axis, signal: Signal) -> Option<String> {
        match (axis, signal) {
            (Axis::Quantization, _) => self.lacks_fp8(),
            (Axis::Model, Signal::TooSlow | Signal::RamShort) => Some(
                "no smaller model of this kind is known to this build; try one of your own with --set \
                 model_id=FOLDER"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

impl OwnPlanner {
    /// Why these weights cannot be run in 8 bits, if so; NF4 and GGUF are recognised and run nowhere.
    fn lacks_fp8(&self) -> Option<String> {
        let mut words = self.command.clone();
        let opened = apply(&mut words, "quantization", "fp8")
            .and_then(|()| command::parse(&words))
            .and_then(|args| model::open(&args.run));
        opened.err().map(|failure| {
            format!("of quantizations this build runs fp8, and not here: {}", failure.text())
        })
    }
}

/// The planner of a run of other software: nothing is predicted, and everything may be tried there.
pub(crate) struct NoPlanner;

impl Planner for NoPlanner {
    fn expect(&mut self, _: Option<&Change>) -> Option<Expected> {
        None
    }

    fn lacks(&self, _: Axis, _: Signal) -> Option<String> {
        None
    }
}

/// Changes a condition in a command.
pub(crate) fn apply(words: &mut Vec<String>, field: &str, value: &str) -> Result<(), Failure> {
    let option = match field {
        "model_id" => "--model",
        "transformer" => "--transformer",
        "device" => "--device",
        "offload_mode" => "--offload",
        "blocks_per_group" => "--blocks-per-group",
        "prefetch" => "--prefetch",
        "hoist" => "--hoist",
        "host_tier" => "--host-tier",
        "ram" => "--ram",
        "width" => "--width",
        "height" => "--height",
        "batch_size" => "--count",
        "steps" => "--steps",
        "context_length" => "--text-tokens",
        "vae_tile" => "--vae-tile",
        "vram_line" => "--vram",
        "threads" => "--threads",
        "guidance" => "--guidance",
        "seed" => "--seed",
        "noise" => "--noise",
        "prompt" => {
            command::set_prompt(words, value);
            return Ok(());
        }
        // Two axes in one option: what is computed in, and what is stored.
        "dtype" | "quantization" => {
            let now = command::get(words, "--dtype").unwrap_or("bf16");
            let dtypes = changed(now, field, value).map_err(Failure::Usage)?;
            command::set(words, "--dtype", &dtypes.to_string());
            return Ok(());
        }
        other => {
            let what = format!(
                "{other:?} is no condition that a trial sets: model_id, transformer, dtype, quantization, \
                 device, offload_mode, blocks_per_group, prefetch, hoist, host_tier, ram, width, height, \
                 batch_size, steps, context_length, vae_tile, vram_line, threads, guidance, seed, noise, prompt"
            );
            return Err(Failure::Usage(what));
        }
    };
    command::set(words, option, value);
    Ok(())
}

/// `--dtype` as it is now, with one of its two axes changed.
fn changed(now: &str, field: &str, value: &str) -> Result<DTypes, String> {
    let now: DTypes = now.parse()?;
    if field == "dtype" {
        let new: DTypes = value.parse().map_err(|error| format!("dtype: {error}"))?;
        if new.has_parts() {
            return Err(
                "dtype is bf16 or f32; what weights are stored as is the axis quantization"
                    .to_owned(),
            );
        }
        return Ok(now.with_run(new.run()));
    }
    match value {
        "none" => Ok(now.with_narrow(false)),
        value if value == "fp8" || value.starts_with("fp8 ") => Ok(now.with_narrow(true)),
        other => Err(format!(
            "quantization {other:?} is not run by this build: fp8 and none are (NF4, INT8 and GGUF are recognised)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtype_and_quantization_are_two_axes_of_one_option() {
        let mut words: Vec<String> =
            ["generate", "--dtype", "bf16", "--", "x"].map(str::to_owned).to_vec();
        let mut set = |field, value| {
            apply(&mut words, field, value).map(|()| words[2].clone()).map_err(|f| f.text())
        };
        assert_eq!(set("quantization", "fp8"), Ok("bf16,transformer=fp8".to_owned()));
        assert_eq!(set("dtype", "f32"), Ok("f32,transformer=fp8".to_owned()));
        // As a record says it.
        assert_eq!(
            set("quantization", "fp8 e4m3 (transformer)"),
            Ok("f32,transformer=fp8".to_owned())
        );
        assert_eq!(set("quantization", "none"), Ok("f32".to_owned()));
        assert!(set("quantization", "nf4").is_err_and(|text| text.contains("not run")));
        assert!(set("dtype", "transformer=fp8").is_err_and(|text| text.contains("quantization")));
        assert!(set("dtype", "f16").is_err_and(|text| text.contains("dtype")));
    }
}
