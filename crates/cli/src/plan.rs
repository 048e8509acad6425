//! `plimsoll plan`: bytes and seconds before anything runs.

use plimsoll_graph::Graph;
use plimsoll_models::{FluxModel, FluxRun};
use plimsoll_pipeline::{Defaults, PipelineError, Planned, TileSides, plan_tiled};
use plimsoll_plan::{Machine, explain};
use serde_json::json;

use crate::args::{PlanArgs, RunArgs};
use crate::dtypes::DTypes;
use crate::executor::Executor;
use crate::failure::Failure;
use crate::{forecast, model, out, request};

pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    if args.forecast.json_schema {
        return out::result(&plimsoll_ledger::schema());
    }
    if args.forecast.is_asked() || model::is_forecast(&args.run.model) {
        return forecast::run(args);
    }
    let args = &args.run;
    let executor = Executor::find_for_plan(args)?;
    let (name, planned, machine) = match model::known(&args.model) {
        Some(_) if args.transformer.is_some() => {
            let what =
                format!("{} is planned from its shapes: --transformer is for folders", args.model);
            return Err(Failure::Usage(what));
        }
        Some(model) => {
            let defaults = published_defaults(&args.model, &model);
            request::check_text_tokens(args, &defaults)?;
            let request = request::place_request(args, &defaults);
            let shapes = |run: &FluxRun| shapes(&model, run, &args.dtype);
            let machine = executor.machine(args, &shapes(&request.run)?)?;
            let asked = plimsoll_plan::Request {
                line: request.line,
                offload: request.offload,
                prefetch: request.prefetch,
            };
            let sides = TileSides::of(&model, &request.run);
            let graph = |vae_tile| shapes(&FluxRun { vae_tile, ..request.run });
            let planned = plan_tiled(request.tiling, sides, machine.as_ref(), &asked, &graph)?;
            (defaults.name, planned, machine)
        }
        None => {
            let mut assembled = model::open(args)?;
            assembled.limit_host(request::host_limits(args, executor.shares_ram()));
            let request = request::place_request(args, assembled.defaults());
            let graph = assembled.graph(&request.run)?;
            let machine = executor.machine(args, &graph)?;
            let name = assembled.defaults().name.clone();
            (name, assembled.plan(&request, machine.as_ref())?, machine)
        }
    };
    print(args, &name, &planned, machine.as_ref())
}

fn print(
    args: &RunArgs,
    name: &str,
    planned: &Planned,
    machine: &dyn Machine,
) -> Result<(), Failure> {
    let ledger = explain(&planned.graph, &planned.plan);
    if args.json {
        let plan = &planned.plan;
        let object = json!({
            "model": name,
            "machine": machine.name(),
            "plan_id": plan.id,
            "offload": plan.offload,
            "prefetch": plan.prefetch,
            "vram_line_bytes": plan.line_bytes,
            "vae_tile": plan.decode_tile,
            "arena_bytes": plan.arena_bytes,
            "predicted": plan.predicted,
            "disk": planned.disk.map(|share| share.json()),
            "ledger": ledger,
        });
        out::result(&object.to_string())
    } else {
        let notice = planned.disk.map_or_else(String::new, |share| {
            format!("\n{}", share.notice(planned.plan.predicted.seconds_per_step))
        });
        let tiled = planned.plan.decode_tile.map(|edge| format!(", decoded in tiles of {edge}"));
        let tiled = tiled.unwrap_or_default();
        let name = out::line(name);
        out::result(&format!("{name} on {}{tiled}\n{ledger}{notice}", machine.name()))
    }
}

/// The graph of a published model in its published dtype, or as it would be packed.
fn shapes(model: &FluxModel, run: &FluxRun, dtypes: &DTypes) -> Result<Graph, PipelineError> {
    Ok(model.graph(run, &|component, entry| dtypes.of_shapes(component, entry))?)
}

fn published_defaults(name: &str, model: &FluxModel) -> Defaults {
    let is_dev = model.transformer.guidance_embeds;
    Defaults {
        name: name.to_owned(),
        width: 1024,
        height: 1024,
        steps: if is_dev { 28 } else { 4 },
        guidance: if is_dev { 3.5 } else { 0.0 },
        text_tokens: if is_dev { 512 } else { 256 },
    }
}
