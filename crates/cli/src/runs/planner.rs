//! What the planner says to a change of a recorded run.

use plimsoll_pipeline::{Assembled, PipelineError};
use plimsoll_plan::PlanError;
use plimsoll_record::next::{Change, Expected, Planner};
use plimsoll_record::{Axis, Signal};

use crate::args::GenerateArgs;
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
        Ok(Self {
            command: words.to_vec(),
            assembled: model::open(&args.run)?,
            executor: Executor::find_for_plan(&args.run)?,
        })
    }

    fn plan(&self, args: &GenerateArgs) -> Result<Expected, Failure> {
        let place = request::place_request(&args.run, self.assembled.defaults());
        let graph = self.assembled.graph(&place.run)?;
        let machine = self.executor.machine(&args.run, &graph)?;
        match self.assembled.plan(&place, machine.as_ref()) {
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

impl Planner for OwnPlanner {
    fn expect(&mut self, change: Option<&Change>) -> Option<Expected> {
        let mut words = self.command.clone();
        for (field, value) in change.into_iter().flat_map(|change| &change.set) {
            apply(&mut words, field, value).ok()?;
        }
        let args = command::parse(&words).ok()?;
        // What cannot be planned at all does not fit.
        Some(self.plan(&args).unwrap_or_default())
    }

    fn lacks(&self, axis: Axis, signal: Signal) -> Option<String> {
        match (axis, signal) {
            (Axis::Quantization, _) => Some(
                "this build runs f32, f16 and bf16 weights; quantized ones (fp8, NF4, GGUF) are recognised \
                 and not yet run"
                    .to_owned(),
            ),
            (Axis::Model, Signal::TooSlow | Signal::RamShort) => Some(
                "no smaller model of this kind is known to this build; try one of your own with --set \
                 model_id=FOLDER"
                    .to_owned(),
            ),
            _ => None,
        }
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
        "dtype" => "--dtype",
        "device" => "--device",
        "offload_mode" => "--offload",
        "blocks_per_group" => "--blocks-per-group",
        "prefetch" => "--prefetch",
        "width" => "--width",
        "height" => "--height",
        "batch_size" => "--count",
        "steps" => "--steps",
        "context_length" => "--text-tokens",
        "vram_line" => "--vram",
        "threads" => "--threads",
        "guidance" => "--guidance",
        "seed" => "--seed",
        "noise" => "--noise",
        "prompt" => {
            command::set_prompt(words, value);
            return Ok(());
        }
        "quantization" if value == "none" => return Ok(()),
        "quantization" => {
            let what = "quantized weights are recognised and not yet run by this build";
            return Err(Failure::Usage(what.to_owned()));
        }
        other => {
            let what = format!(
                "{other:?} is no condition that a trial sets: model_id, transformer, dtype, device, \
                 offload_mode, blocks_per_group, prefetch, width, height, batch_size, steps, context_length, \
                 vram_line, threads, guidance, seed, noise, prompt"
            );
            return Err(Failure::Usage(what));
        }
    };
    command::set(words, option, value);
    Ok(())
}
