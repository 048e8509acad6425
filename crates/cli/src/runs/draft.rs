//! The record of a run as it comes to be: what is known fills in while the run goes on.

use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use plimsoll_graph::PhaseKind;
use plimsoll_models::flux;
use plimsoll_pipeline::{Assembled, Generated, PlaceRequest, Placed};
use plimsoll_plan::Machine;
use plimsoll_record::{
    Conditions, FindingCode, Json, Record, Run, Stage, StageSeconds, Status, new_run_id, picture,
    utc,
};

use crate::args::{DeviceName, GenerateArgs, HostTierName, KernelsName, OffloadName};
use crate::failure::Failure;
use crate::runs::{command, machine, reason, revision};
use crate::{demo, request};

/// A record that is being filled in.
pub(crate) struct Draft {
    began: Instant,
    stage: Stage,
    record: Record,
    plan_json: Option<String>,
}

impl Draft {
    /// From what was typed.
    pub(crate) fn begin(args: &GenerateArgs) -> Self {
        let now = SystemTime::now();
        let run = Run {
            run_id: args.record.run_id.clone().unwrap_or_else(|| new_run_id(now)),
            created: utc(now),
            kind: "image".to_owned(),
            recorded_by: "plimsoll".to_owned(),
            ..Run::default()
        };
        let typed = &args.run;
        let mut conditions = Conditions {
            model_id: Some(typed.model.clone()),
            weight_format: Some(weight_format(args).to_owned()),
            dtype: Some(typed.dtype.run().name().to_owned()),
            quantization: Some(quantization(typed.dtype.is_narrow(flux::TRANSFORMER)).to_owned()),
            runtime: Some(concat!("plimsoll ", env!("CARGO_PKG_VERSION")).to_owned()),
            offload_mode: Some(command::name(typed.offload)),
            offload_api: Some(offload_api(args)),
            pipeline_moved_to_cuda: Some(false),
            width: typed.width,
            height: typed.height,
            context_length: typed.text_tokens,
            batch_size: Some(typed.count.into()),
            steps: typed.steps.map(u64::from),
            guidance: args.guidance.map(shortest),
            seed: Some(args.seed.to_string()),
            prompt: Some(args.prompt.clone()),
            noise: Some(command::name(args.noise)),
            vae_tile: Some(typed.vae_tile.unwrap_or_default().to_string()),
            vram_line: Some(command::line(typed.vram.0)),
            command: Json(command::of(args, None, None, None)),
            ..Conditions::default()
        };
        if let Some(file) = &typed.transformer {
            conditions.attached_components.0.push(format!("transformer: {}", file.display()));
        }
        let versions = &mut conditions.versions.0;
        versions.insert("plimsoll".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        versions.insert("system".to_owned(), machine::system());
        let record = Record { run, conditions, ..Record::default() };
        Self { began: Instant::now(), stage: Stage::Load, record, plan_json: None }
    }

    /// The run's id.
    pub(crate) fn run_id(&self) -> &str {
        &self.record.run.run_id
    }

    /// The device is known.
    pub(crate) fn on_device(&mut self, args: &GenerateArgs, device: &str) {
        let conditions = &mut self.record.conditions;
        conditions.device = Some(match args.run.device {
            DeviceName::Cuda(index) if index > 0 => format!("{device}:{index}"),
            _ => device.to_owned(),
        });
        // Other kernels are other arithmetic, and so another runtime.
        if device == "cuda" && args.run.kernels == KernelsName::Own {
            conditions.runtime =
                Some(concat!("plimsoll ", env!("CARGO_PKG_VERSION"), ", own kernels").to_owned());
        }
        if device != "cuda" {
            conditions.threads = request::workers(&args.run).ok().map(|threads| threads as u64);
        }
        // Everything on the card at once is what moving a pipeline there does.
        conditions.pipeline_moved_to_cuda =
            Some(device == "cuda" && args.run.offload == OffloadName::None);
        conditions.command = Json(command::of(args, None, Some(device), None));
        self.record.load.ram_limit = Some(request::ram_bytes());
    }

    /// The model is open and its defaults are known.
    pub(crate) fn opened(
        &mut self,
        args: &GenerateArgs,
        assembled: &Assembled,
        place: &PlaceRequest,
        guidance: f32,
    ) {
        let conditions = &mut self.record.conditions;
        let run = &place.run;
        conditions.model_id = Some(assembled.defaults().name.clone());
        conditions.model_revision = if args.run.model == "demo" && args.run.transformer.is_none() {
            Some(revision::of_embedded(demo::FILES))
        } else {
            revision::of(args.run.model.as_ref(), args.run.transformer.as_deref())
        };
        // A packed folder is quantized whatever was typed.
        let is_narrow = assembled.is_narrow(flux::TRANSFORMER) == Some(true)
            || args.run.dtype.is_narrow(flux::TRANSFORMER);
        conditions.quantization = Some(quantization(is_narrow).to_owned());
        conditions.input_size = Some(format!("{}x{}", run.width, run.height));
        conditions.width = Some(run.width);
        conditions.height = Some(run.height);
        conditions.steps = Some(run.steps.into());
        conditions.context_length = Some(run.text_tokens);
        conditions.guidance = Some(shortest(guidance));
        let device = conditions.device.clone();
        let command = command::of(args, Some(place), device.as_deref(), Some(guidance));
        conditions.command = Json(command);
    }

    /// The machine that plans are made for is known.
    pub(crate) fn on_machine(&mut self, machine: &dyn Machine) {
        let conditions = &mut self.record.conditions;
        let versions = &mut conditions.versions.0;
        versions.insert("arithmetic".to_owned(), machine.arithmetic().to_owned());
        // Before that nobody has asked for it: half of a name would differ from every whole one.
        conditions.machine = Some(format!("{}; {}", machine.name(), self::machine::processor()));
    }

    /// There is a proven plan and an arena.
    pub(crate) fn placed(&mut self, placed: &Placed) {
        let plan = placed.plan();
        let load = &mut self.record.load;
        load.plan_id = Some(plan.id.clone());
        load.predicted_peak_vram = Some(plan.predicted.vram_process_bytes);
        load.predicted_seconds_per_step = Some(plan.predicted.seconds_per_step);
        load.predicted_seconds = Some(plan.predicted.seconds_total);
        load.predicted_copied_bytes = Some(plan.predicted.copied_bytes);
        self.record.conditions.vram_line_bytes = Some(plan.line_bytes);
        self.record.conditions.versions.0.insert("plan".to_owned(), plan.version.to_string());
        self.plan_json = serde_json::to_string(plan).ok();
    }

    /// The run has come to a phase.
    pub(crate) fn at(&mut self, phase: PhaseKind) {
        self.stage = match phase {
            PhaseKind::Encode => Stage::Encode,
            PhaseKind::Hoist => Stage::Hoist,
            PhaseKind::Denoise => Stage::Denoise,
            PhaseKind::Decode => Stage::Decode,
        };
    }

    /// The run has come to its end; its pictures are in memory.
    pub(crate) fn generated(&mut self, placed: &Placed, generated: &Generated) {
        self.stage = Stage::Write;
        let report = &generated.report;
        let load = &mut self.record.load;
        let measured = report.stats.high_water_bytes;
        load.peak_vram = Some(
            generated.held_bytes.unwrap_or(measured.saturating_add(placed.plan().reserved_bytes)),
        );
        load.seconds_per_step = Some(report.seconds_per_step);
        load.run_seconds = Some(report.stats.seconds);
        load.copied_bytes = Some(report.stats.copied_bytes);
        load.stages.0 = report
            .stages
            .iter()
            .map(|stage| StageSeconds { name: stage.name.clone(), seconds: stage.seconds })
            .collect();
        let quality = &mut self.record.quality;
        quality.latent_sha256.0.clone_from(&generated.latent_sha256);
        quality.picture_sha256.0 =
            generated.pictures.iter().map(plimsoll_pipeline::Picture::sha256).collect();
        let found = generated.pictures.iter().filter_map(|made| picture::degenerate(made.rgb()));
        self.record.findings.extend(found);
    }

    /// The pictures are in their files.
    pub(crate) fn written(&mut self, paths: &[PathBuf]) {
        let path = |path: &PathBuf| {
            std::path::absolute(path).unwrap_or_else(|_| path.clone()).display().to_string()
        };
        self.record.quality.pictures.0 = paths.iter().map(path).collect();
        let bytes = paths.iter().filter_map(|path| std::fs::metadata(path).ok());
        self.record.load.disk_bytes = Some(bytes.map(|file| file.len()).sum());
    }

    /// The whole record, and the plan as JSON.
    pub(crate) fn end(mut self, failure: Option<&Failure>) -> (Record, Option<String>) {
        let record = &mut self.record;
        let is_virtual = record.conditions.device.as_deref() == Some("sim");
        let elapsed = self.began.elapsed().as_secs_f64();
        let virtual_seconds = record.load.run_seconds.filter(|_| is_virtual);
        record.load.elapsed_seconds = Some(virtual_seconds.unwrap_or(elapsed));
        record.load.peak_ram = machine::peak_ram();
        record.run.status = Some(failure.map_or(Status::Done, reason::status));
        record.failure = failure.map(|failure| reason::of(failure, self.stage));
        if let Some(finding) = failure.and_then(reason::finding) {
            record.findings.push(finding);
        }
        debug_assert!(
            record.run.status != Some(Status::Done)
                || failure.is_none()
                || record.findings.iter().any(|finding| finding.code == FindingCode::NonFinite),
        );
        (self.record, self.plan_json)
    }

    /// The record of a run that this program's own bug ended.
    pub(crate) fn end_by_bug(mut self, message: String) -> (Record, Option<String>) {
        let stage = self.stage;
        self.record.load.elapsed_seconds = Some(self.began.elapsed().as_secs_f64());
        self.record.load.peak_ram = machine::peak_ram();
        self.record.run.status = Some(Status::Failed);
        self.record.failure = Some(reason::bug(message, stage));
        let Self { record, plan_json, .. } = self;
        (record, plan_json)
    }
}

/// The number that the shortest text of an f32 means: 3.5 and not 3.5 plus what the wider type adds.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// What weights were converted to: an axis of its own, beside the dtype that is computed in.
fn quantization(is_narrow: bool) -> &'static str {
    if is_narrow { "fp8 e4m3 (transformer)" } else { "none" }
}

fn weight_format(args: &GenerateArgs) -> &'static str {
    if args.run.transformer.is_some() {
        "safetensors, diffusers folder with a single-file transformer"
    } else if args.run.model == "demo" {
        "safetensors, built in"
    } else {
        "safetensors, diffusers folder"
    }
}

/// The options that decide how weights reach the device.
fn offload_api(args: &GenerateArgs) -> String {
    let run = &args.run;
    let mut text = format!("--offload {}", command::name(run.offload));
    if run.offload == OffloadName::Group {
        text += &format!(" --blocks-per-group {}", run.blocks_per_group);
    }
    text += &format!(" --prefetch {}", command::name(run.prefetch));
    if !run.hoist.is_on() {
        text += " --hoist off";
    }
    if run.host_tier != HostTierName::Auto {
        text += &format!(" --host-tier {}", command::name(run.host_tier));
    }
    if let Some(size) = run.ram {
        text += &format!(" --ram {}", size.0);
    }
    text
}
