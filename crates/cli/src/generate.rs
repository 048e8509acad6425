//! `plimsoll generate`: a prompt to a picture.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use plimsoll_device::Control;
use plimsoll_models::flux::SAMPLES_MAX;
use plimsoll_pipeline::{
    Assembled, Generated, PipelineError, PlaceRequest, Placed, Prompt, check_writable,
};
use plimsoll_plan::Machine;
use serde_json::{Value, json};

use crate::args::GenerateArgs;
use crate::executor::{Executor, Expected};
use crate::failure::Failure;
use crate::pack::cache;
use crate::progress::Bar;
use crate::runs::{Draft, Recorder};
use crate::{interrupt, model, out, outputs, request, trace};

pub(crate) fn run(args: &GenerateArgs) -> Result<(), Failure> {
    let control = interrupt::control();
    let mut recorder = Recorder::open(&args.record)?;
    let mut draft = Draft::begin(args);
    let writes = !recorder.is_repeat();
    let made = catch_unwind(AssertUnwindSafe(|| carry_out(args, &control, &mut draft, writes)));
    // From here on nothing takes long, and nothing may be cut short: the picture is there, its record is not.
    interrupt::writing();
    if !recorder.is_on() {
        interrupt::written();
        let made = made.unwrap_or_else(|bug| resume_unwind(bug))?;
        let printed = print(args, &made, None);
        std::mem::forget(made);
        return printed;
    }
    let (record, plan_json) = match &made {
        Ok(made) => draft.end(made.as_ref().err()),
        Err(_) => draft.end_by_bug(crate::last_panic()),
    };
    let run_id = recorder.write(record, plan_json.as_deref(), &args.output);
    interrupt::written();
    let made = made.unwrap_or_else(|bug| resume_unwind(bug));
    match (made, run_id) {
        (Ok(made), run_id) => {
            // What was made is told, whatever became of its record.
            print(args, &made, run_id.as_ref().ok().and_then(Option::as_deref))?;
            // The system takes all memory back at once when the process ends, sooner than piece by piece.
            std::mem::forget(made);
            run_id.map(drop)
        }
        (Err(failure), Ok(run_id)) => {
            if let Some(run_id) = run_id {
                out::notice(&format!("recorded as {run_id}"));
            }
            Err(failure)
        }
        (Err(failure), Err(lost)) => {
            out::notice(&lost.text());
            Err(failure)
        }
    }
}

/// What a run made, for its summary.
struct Made {
    placed: Placed,
    generated: Generated,
    paths: Vec<PathBuf>,
    model: String,
    device: &'static str,
    seconds_total: f64,
}

/// The run itself; `draft` is told of everything as it becomes known. Pictures are in their files at the end.
fn carry_out(
    args: &GenerateArgs,
    control: &Control,
    draft: &mut Draft,
    writes: bool,
) -> Result<Made, Failure> {
    let mut paths = output_paths(args)?;
    let Opened { executor, assembled } = Opened::find(args)?;
    draft.on_device(args, executor.name());
    check_outputs(args, &paths, executor.computes() && writes)?;

    let Ready { mut placed, machine, prompt, device } =
        set_up(args, executor, assembled?, None, control, draft)?;
    let machine = machine.as_ref();
    let timeline = placed.simulate(machine);
    let bar = Bar::new(timeline.computes.iter().map(|(_, end)| *end).collect());
    let began = Instant::now();
    let wants_trace = args.trace.is_some();
    let generated = placed.generate(machine, &prompt, control, wants_trace, &mut |progress| {
        draft.at(progress.kind);
        bar.show(progress);
    });
    bar.finish();
    let generated = generated?;
    let seconds_total = began.elapsed().as_secs_f64();
    draft.generated(&placed, &generated);
    for notice in &generated.notices {
        out::notice(notice);
    }
    let model = placed.assembled().defaults().name.clone();
    interrupt::writing();
    paths.truncate(if writes { generated.pictures.len() } else { 0 });
    write_pictures(&placed, &generated, &prompt, &paths, &model, draft.run_id())?;
    if let Some(path) = args.save_tensors.as_ref().filter(|_| !generated.tensors.is_empty()) {
        let notes = [("format", "pt"), ("model", &*model), ("plan", &placed.plan().id)];
        generated.write_tensors(path, &notes)?;
    }
    draft.written(&paths);
    if let Some(path) = &args.trace {
        trace::write(path, placed.graph(), placed.plan(), &generated.report.stats)?;
    }
    Ok(Made { placed, generated, paths, model, device, seconds_total })
}

/// What a run is made of.
pub(crate) struct Opened {
    pub(crate) executor: Executor,
    /// Looked at after the device, whose fault is told first.
    pub(crate) assembled: Result<Assembled, Failure>,
}

impl Opened {
    /// Opens the model, then the device, which tries the model's files while it opens.
    pub(crate) fn find(args: &GenerateArgs) -> Result<Self, Failure> {
        let assembled = model::open(&args.run);
        let expected = |assembled| Expected::of(&args.run, assembled);
        let expected = assembled.as_ref().map(expected).unwrap_or_default();
        Ok(Self { executor: Executor::find_for(&args.run, expected)?, assembled })
    }
}

/// A run that only has to be started.
pub(crate) struct Ready {
    pub(crate) placed: Placed,
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) prompt: Prompt,
    /// Name of the device.
    pub(crate) device: &'static str,
}

/// Places the model, for the machine as it is known already or else as it is found now; `draft` is told of
/// everything as it becomes known.
pub(crate) fn set_up(
    args: &GenerateArgs,
    executor: Executor,
    mut assembled: Assembled,
    known: Option<Arc<dyn Machine>>,
    control: &Control,
    draft: &mut Draft,
) -> Result<Ready, Failure> {
    assembled.limit_host(request::host_limits(&args.run, executor.shares_ram()));
    let place = PlaceRequest {
        saves: args.save_tensors.is_some(),
        ..request::place_request(&args.run, assembled.defaults())
    };
    let prompt = Prompt {
        text: args.prompt.clone(),
        seed: args.seed,
        guidance: args.guidance.unwrap_or(assembled.defaults().guidance),
        noise: args.noise.source(),
    };
    draft.opened(args, &assembled, &place, prompt.guidance);
    let machine = match known {
        Some(machine) => machine,
        None => executor.machine(&args.run, &assembled.graph(&place.run)?)?.into(),
    };
    if executor.computes() {
        assembled = cache::settle(assembled, &args.run, &place, machine.as_ref(), control)?;
    }
    draft.on_machine(machine.as_ref());
    let device = executor.name();
    let shared = executor.shared();
    let target = executor.target()?;
    let line = place.line;
    let placed =
        assembled.place(place, machine.as_ref(), target).map_err(|failure| match shared {
            Some(shared) => shared.busy(line, failure.error),
            None => failure.error.into(),
        })?;
    draft.placed(&placed);
    Ok(Ready { placed, machine, prompt, device })
}

fn print(args: &GenerateArgs, made: &Made, run_id: Option<&str>) -> Result<(), Failure> {
    let summary = Summary { args, made, run_id };
    if args.run.json {
        out::result(&summary.json().to_string())
    } else {
        out::result(&summary.text())
    }
}

/// Every file that the run will write can be written, and none is another.
fn check_outputs(args: &GenerateArgs, paths: &[PathBuf], computes: bool) -> Result<(), Failure> {
    if computes {
        for path in [&args.output].into_iter().chain(paths) {
            check_writable(path).map_err(PipelineError::from)?;
        }
    }
    let traced = [&args.trace, &args.save_tensors].into_iter().flatten();
    for path in paths.iter().chain(traced) {
        outputs::refuse_taken(path, args)?;
    }
    let others = [("--trace", &args.trace), ("--save-tensors", &args.save_tensors)];
    let mut named: Vec<(&str, &PathBuf)> = paths.iter().map(|path| ("--output", path)).collect();
    for (option, path) in others {
        let Some(path) = path else { continue };
        check_writable(path).map_err(PipelineError::from)?;
        if let Some((other, _)) = named.iter().find(|(_, known)| *known == path) {
            let what = format!("{option} and {other} are both {}", path.display());
            return Err(Failure::Usage(what));
        }
        named.push((option, path));
    }
    Ok(())
}

/// The output's own name, or one a seed.
fn output_paths(args: &GenerateArgs) -> Result<Vec<PathBuf>, Failure> {
    if !(1..=SAMPLES_MAX).contains(&args.run.count) {
        let what =
            format!("number of pictures is {}: 1 to {SAMPLES_MAX} is needed", args.run.count);
        return Err(Failure::Usage(what));
    }
    if args.seed.checked_add(u64::from(args.run.count) - 1).is_none() {
        let most = u64::MAX - u64::from(args.run.count) + 1;
        let what = format!(
            "--seed is {}: with {} pictures, each of the next seed, at most {most} works",
            args.seed, args.run.count
        );
        return Err(Failure::Usage(what));
    }
    if args.run.count == 1 {
        return Ok(vec![args.output.clone()]);
    }
    let stem = args.output.file_stem().unwrap_or_default().to_string_lossy();
    let extension = args.output.extension().map_or("png".into(), |text| text.to_string_lossy());
    let paths = (0..u64::from(args.run.count)).map(|at| {
        let seed = args.seed.wrapping_add(at);
        args.output.with_file_name(format!("{stem}-{seed}.{extension}"))
    });
    Ok(paths.collect())
}

fn write_pictures(
    placed: &Placed,
    generated: &Generated,
    prompt: &Prompt,
    paths: &[PathBuf],
    model: &str,
    run_id: &str,
) -> Result<(), PipelineError> {
    let steps = placed.request().run.steps.to_string();
    let guidance = prompt.guidance.to_string();
    for (at, (picture, path)) in generated.pictures.iter().zip(paths).enumerate() {
        let seed = prompt.seed.wrapping_add(at as u64).to_string();
        let notes = [
            ("prompt", prompt.text.as_str()),
            ("seed", &seed),
            ("steps", &steps),
            ("guidance", &guidance),
            ("model", model),
            ("plan", &placed.plan().id),
            ("run", run_id),
            ("Software", concat!("plimsoll ", env!("CARGO_PKG_VERSION"))),
        ];
        picture.write_png(path, &notes)?;
    }
    Ok(())
}

struct Summary<'a> {
    args: &'a GenerateArgs,
    made: &'a Made,
    run_id: Option<&'a str>,
}

impl Summary<'_> {
    fn json(&self) -> Value {
        let Made { placed, generated, .. } = self.made;
        let plan = placed.plan();
        let report = &generated.report;
        let run = &placed.request().run;
        let pictures = &generated.pictures;
        let outputs: Vec<_> =
            self.made.paths.iter().map(|path| path.display().to_string()).collect();
        let images: Vec<_> = pictures.iter().map(plimsoll_pipeline::Picture::sha256).collect();
        let latents = &generated.latent_sha256;
        let stages: Vec<_> = report
            .stages
            .iter()
            .map(|stage| json!({ "name": stage.name, "seconds": stage.seconds }))
            .collect();
        json!({
            "run_id": self.run_id,
            "output": outputs.first(),
            "outputs": outputs,
            "model": self.made.model,
            "prompt": self.args.prompt,
            "seed": self.args.seed,
            "steps": run.steps,
            "width": run.width,
            "height": run.height,
            "dtype": run.dtype.name(),
            "device": self.made.device,
            "offload": plan.offload,
            "prefetch": plan.prefetch,
            "vae_tile": plan.decode_tile,
            "plan_id": plan.id,
            "vram_line_bytes": plan.line_bytes,
            "predicted": plan.predicted,
            "disk": placed.disk().map(|share| share.json()),
            "measured": {
                "vram_peak_bytes": report.stats.high_water_bytes,
                "vram_process_bytes": generated.held_bytes,
                "copied_bytes_per_step": report.copied_bytes_per_step,
                "copied_bytes": report.stats.copied_bytes,
                "seconds_per_step": report.seconds_per_step,
                "seconds_total": self.made.seconds_total,
                "stages": stages,
            },
            "latent_sha256": latents.first(),
            "latents_sha256": latents,
            "image_sha256": images.first(),
            "images_sha256": images,
            "notices": generated.notices,
        })
    }

    fn text(&self) -> String {
        let Made { placed, generated, .. } = self.made;
        let plan = placed.plan();
        let report = &generated.report;
        let mut lines: Vec<String> =
            self.made.paths.iter().map(|path| path.display().to_string()).collect();
        if generated.pictures.is_empty() {
            lines.push("simulated: no picture was computed".to_owned());
        }
        lines.push(format!(
            "VRAM     peak {} of a line of {} (predicted {})",
            bytes(report.stats.high_water_bytes),
            bytes(plan.line_bytes),
            bytes(plan.predicted.vram_peak_bytes),
        ));
        if let Some(held) = generated.held_bytes {
            lines.push(format!(
                "process  {} (predicted {}: {} of them beside the arena)",
                bytes(held),
                bytes(plan.predicted.vram_process_bytes),
                bytes(plan.reserved_bytes),
            ));
        }
        lines.push(format!(
            "streamed {} a step, {} in all (predicted {} a step)",
            bytes(report.copied_bytes_per_step),
            bytes(report.stats.copied_bytes),
            bytes(plan.predicted.copied_bytes_per_step),
        ));
        lines.push(format!(
            "time     {:.3} s a step, {:.2} s in all (predicted {:.3} s a step)",
            report.seconds_per_step, self.made.seconds_total, plan.predicted.seconds_per_step,
        ));
        let tiled = plan.decode_tile.map(|edge| format!(", decoded in tiles of {edge}"));
        lines.push(format!("plan     {}{}", plan.id, tiled.unwrap_or_default()));
        if let Some(run_id) = self.run_id {
            lines.push(format!("record   {run_id}"));
        }
        lines.join("\n")
    }
}

/// Bytes in binary units, as the line is written.
fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
}
