//! `plimsoll bench`: the same picture again and again at several lines in one process and on one device, a JSON line
//! each.

use std::time::Instant;

use plimsoll_device::Control;
use plimsoll_pipeline::{NoiseSource, PlaceRequest, Placed, Prompt};
use serde_json::{Value, json};

use crate::args::BenchArgs;
use crate::executor::{Executor, Expected};
use crate::failure::Failure;
use crate::pack::cache;
use crate::{interrupt, model, out, request};

pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let control = interrupt::control();
    let begin = Instant::now();
    let mut assembled = model::open(&args.run)?;
    let open_seconds = begin.elapsed().as_secs_f64();
    let prompt = Prompt {
        text: args.prompt.clone(),
        seed: 0,
        guidance: assembled.defaults().guidance,
        noise: NoiseSource::F32,
    };
    let begin = Instant::now();
    let executor = Executor::find_for(&args.run, Expected::of(&args.run, &assembled))?;
    let device = executor.name();
    let device_seconds = begin.elapsed().as_secs_f64();
    assembled.limit_host(request::host_limits(&args.run, executor.shares_ram()));
    let request = request::place_request(&args.run, assembled.defaults());
    let machine = executor.machine(&args.run, &assembled.graph(&request.run)?)?;
    let machine = machine.as_ref();
    if executor.computes() {
        // What one line needs, all lines use.
        for line in &args.lines {
            let request = PlaceRequest { line: line.0, ..request };
            assembled = cache::settle(assembled, &args.run, &request, machine, &control)?;
        }
    }
    // One device for all lines: plan after plan is laid on it.
    let mut waiting = Some((assembled, executor.target()?));
    let mut last = None;
    for round in 0..args.rounds {
        for line in &args.lines {
            let begin = Instant::now();
            let request = PlaceRequest { line: line.0, ..request };
            let moved = match (last.take(), waiting.take()) {
                (Some(placed), _) => Placed::move_to(placed, request, machine),
                (None, Some((assembled, target))) => assembled.place(request, machine, target),
                (None, None) => return Ok(()),
            };
            let mut placed = moved.map_err(|failed| failed.error)?;
            let place_seconds = begin.elapsed().as_secs_f64();
            let mut pictures = Vec::new();
            for again in 0..args.pictures {
                let begin = Instant::now();
                let made = placed.generate(machine, &prompt, &control, false, &mut |_| ())?;
                let report = &made.report;
                let stages =
                    report.stages.iter().map(|stage| (stage.name.clone(), json!(stage.seconds)));
                pictures.push(json!({
                    "again": again,
                    "seconds": begin.elapsed().as_secs_f64(),
                    "seconds_run": report.stats.seconds,
                    "seconds_per_step": report.seconds_per_step,
                    "stages": stages.collect::<serde_json::Map<_, _>>(),
                    "vram_process_bytes": made.held_bytes,
                    "latent_sha256": made.latent_sha256.first(),
                    "image_sha256": made.pictures.first().map(plimsoll_pipeline::Picture::sha256),
                    "notices": made.notices,
                    "rss": resident(),
                }));
            }
            let plan = placed.plan();
            out::result(
                &json!({
                    "round": round,
                    "device": device,
                    "machine": machine.name(),
                    "plan_id": plan.id,
                    "vram_line_bytes": plan.line_bytes,
                    "vae_tile": plan.decode_tile,
                    "predicted": plan.predicted,
                    "disk": placed.disk().map(|share| share.json()),
                    "seconds_open": open_seconds,
                    "seconds_device": device_seconds,
                    "seconds_place": place_seconds,
                    "pictures": pictures,
                })
                .to_string(),
            )?;
            last = Some(placed);
            if Control::is_cancelled(&control) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Bytes of this process in RAM, by what they are: anonymous, of files, shared. `null` where the system does not say.
fn resident() -> Value {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 =
            line.trim_start_matches(':').trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    };
    json!({ "anonymous": bytes("RssAnon"), "file": bytes("RssFile"), "shared": bytes("RssShmem") })
}
