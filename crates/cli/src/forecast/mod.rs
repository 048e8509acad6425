//! `plimsoll plan` for a model and a card by name, and `plimsoll ledger`.

pub(crate) mod args;
mod print;
mod thumb;

use plimsoll_cuda_kernels::{Arch, Backends};
use plimsoll_device_cuda::profile::CardProfile;
use plimsoll_ledger::{
    Ask, Codings, Curve, Forecast, HostLedger, Known, KnownModel, LedgerError, Machines, Recipe,
    StrategyRow, Verdict, advise, curve, host_ledger, known, strategies,
};
use plimsoll_pipeline::PipelineError;
use plimsoll_plan::{Ledger, Line, Machine, Offload, Plan, PlanError, Request, explain, plan};
use serde_json::json;

pub(crate) use thumb::run as ledger;

use args::CurveArg;

use crate::args::{KernelsName, PlanArgs};
use crate::failure::Failure;
use crate::out;

/// Lines of a curve that is drawn.
const CURVE_LINES: usize = 50;

/// All that is told of a run by name.
struct Told {
    model: KnownModel,
    ask: Ask,
    known: Known,
    recipe: Recipe,
    plan: Plan,
    ledger: Ledger,
    outcome: plimsoll_ledger::Outcome,
    host: HostLedger,
    verdict: Option<Verdict>,
    strategies: Vec<StrategyRow>,
    curve: Option<Curve>,
    machine: Forecast,
}

pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    if args.run.transformer.is_some() {
        let what =
            format!("{} is planned from its shapes: --transformer is for folders", args.run.model);
        return Err(Failure::Usage(what));
    }
    if args.run.dtype.has_parts() {
        let what = "a forecast takes --weights and --text-weights, not --dtype COMPONENT=DTYPE";
        return Err(Failure::Usage(what.to_owned()));
    }
    let model = known(&args.run.model)?;
    let ask = ask(args, &model);
    let (known, machine) = machine(args)?;
    let recipe = model.recipe(&ask)?;
    let request = Request {
        line: args.run.vram.0,
        offload: args.run.offload(),
        prefetch: args.run.prefetch.is_on(),
    };
    let plan = match plan(&recipe.graph, &machine, &request) {
        Ok(plan) => plan,
        Err(PlanError::Infeasible { .. }) if request.offload == Offload::Auto => {
            return refuse(args, &model, &ask, &machine, &recipe, &request);
        }
        Err(error) => return Err(Failure::Pipeline(PipelineError::from(error))),
    };
    let (plan, machine, host) = behind_disk(args, &recipe, machine, &request, plan)?;
    let outcome = plimsoll_ledger::outcome(&recipe, &machine, &plan);
    // As the plan has it: of `min` and `max` too.
    let line = Line::Bytes(plan.line_bytes);
    let rows = if args.forecast.strategies {
        strategies(&model, &ask, &machine, line)?
    } else {
        Vec::new()
    };
    let drawn = match &args.forecast.curve {
        Some(CurveArg::Lines(count)) => Some(curve(&recipe, &machine, !host.is_cached, *count)?),
        Some(CurveArg::File(_)) => Some(curve(&recipe, &machine, !host.is_cached, CURVE_LINES)?),
        None => None,
    };
    let title = format!("{} on {}", model.name, machine.name());
    if let (Some(CurveArg::File(path)), Some(drawn)) = (&args.forecast.curve, &drawn) {
        write(path, &plimsoll_ledger::curve_svg(drawn, &title))?;
    }
    if let Some(path) = &args.forecast.timeline {
        write(path, &plimsoll_ledger::timeline_svg(&recipe.graph, &plan, &machine, &title))?;
    }
    let verdict = match request.offload {
        Offload::Auto => Some(advise(&model, &ask, &machine, line)?),
        _ => None,
    };
    let ledger = explain(&recipe.graph, &plan);
    let told = Told {
        model,
        ask,
        known,
        recipe,
        plan,
        ledger,
        outcome,
        host,
        verdict,
        strategies: rows,
        // What was drawn is not listed as well.
        curve: drawn.filter(|_| matches!(args.forecast.curve, Some(CurveArg::Lines(_)))),
        machine,
    };
    if args.run.json { out::result(&told.json()) } else { out::result(&told.text()) }
}

/// The plan with what the host has: where it cannot hold what a step streams, the disk is the bus.
fn behind_disk(
    args: &PlanArgs,
    recipe: &Recipe,
    machine: Forecast,
    request: &Request,
    plan: Plan,
) -> Result<(Plan, Forecast, HostLedger), Failure> {
    let ram = args.forecast.ram.map(|size| size.0);
    let host = host_ledger(&recipe.graph, plan.predicted.copied_bytes_per_step, ram)?;
    if host.is_cached {
        return Ok((plan, machine, host));
    }
    #[expect(clippy::cast_precision_loss, reason = "seconds are an estimate")]
    let Some(rate) = args.forecast.disk.map(|size| size.0 as f64) else {
        let what = "--ram does not hold what a step streams: say with --disk how fast the disk is";
        return Err(Failure::Usage(what.to_owned()));
    };
    let machine = machine.behind(rate);
    let plan = plimsoll_plan::plan(&recipe.graph, &machine, request)
        .map_err(|error| Failure::Pipeline(PipelineError::from(error)))?;
    let host = host_ledger(&recipe.graph, plan.predicted.copied_bytes_per_step, ram)?;
    Ok((plan, machine, host))
}

/// A run that does not fit: the one-line error, after the changes that would help.
fn refuse(
    args: &PlanArgs,
    model: &KnownModel,
    ask: &Ask,
    machine: &Forecast,
    recipe: &Recipe,
    request: &Request,
) -> Result<(), Failure> {
    let verdict = advise(model, ask, machine, request.line)?;
    if !args.run.json {
        out::result(&print::changes(&verdict))?;
    }
    match plan(&recipe.graph, machine, request) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::Pipeline(PipelineError::from(error))),
    }
}

fn ask(args: &PlanArgs, model: &KnownModel) -> Ask {
    let (run, forecast) = (&args.run, &args.forecast);
    let defaults = model.defaults();
    let [width, height, frames] = defaults.size;
    let [width, height] = match forecast.size {
        Some(size) => size.0,
        None => [run.width.unwrap_or(width), run.height.unwrap_or(height)],
    };
    Ask {
        size: [width, height, forecast.frames.unwrap_or(frames)],
        steps: run.steps.unwrap_or(defaults.steps),
        samples: run.count,
        text_tokens: run.text_tokens.unwrap_or(defaults.text_tokens).min(defaults.text_tokens),
        dtype: run.dtype.run(),
        hoist: run.hoist.is_on(),
        row_chunks: forecast.row_chunks,
        tile: forecast.tile,
        codings: Codings {
            denoiser: forecast.weights.coding(),
            text: forecast.text_weights.coding(),
        },
    }
}

fn machine(args: &PlanArgs) -> Result<(Known, Forecast), Failure> {
    let forecast = &args.forecast;
    let machines = Machines::builtin()?;
    let known = match (&forecast.gpu, &forecast.machine) {
        (Some(name), _) => machines.known(machines.card(name)?, forecast.bus.as_deref())?,
        (None, Some(path)) => measured(&machines, path, forecast.bus.as_deref())?,
        (None, None) => {
            let what = "say for which card: --gpu NAME, such as rtx-4080, or --machine FILE";
            return Err(Failure::Usage(what.to_owned()));
        }
    };
    let backends = match args.run.kernels {
        KernelsName::Auto => Backends::libraries(Arch::named(&known.profile.arch)),
        KernelsName::Own => Backends::OWN,
    };
    let machine = Forecast::with_backends(&known, backends);
    Ok((known, machine))
}

/// A profile that `plimsoll probe` wrote.
fn measured(
    machines: &Machines,
    path: &std::path::Path,
    bus: Option<&str>,
) -> Result<Known, Failure> {
    let told = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|cause| Failure::Read { path: told.clone(), cause })?;
    let profile: CardProfile = serde_json::from_str(&text).map_err(|error| Failure::Read {
        path: told,
        cause: std::io::Error::other(error.to_string()),
    })?;
    let link = match bus {
        Some(name) => machines.bus(name)?.usable_bytes_per_second,
        None => profile.link_bytes_per_second,
    };
    // Fp8 was not measured; the card of that name in the list says how much faster it is.
    let listed = machines.card(&profile.name).ok();
    let listed = listed.map(|card| machines.known(card, None)).transpose()?;
    Ok(Known {
        profile: CardProfile { link_bytes_per_second: link, ..profile },
        fp8_speedup: listed.and_then(|known| known.fp8_speedup),
        band: None,
        bus: bus.unwrap_or("measured").to_owned(),
    })
}

fn write(path: &std::path::Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|cause| Failure::Write { path: path.display().to_string(), cause })
}

impl Told {
    /// Least and most seconds, as shares; of what was measured the same.
    fn band(&self) -> [f64; 2] {
        self.known.band.unwrap_or([1.0, 1.0])
    }

    fn json(&self) -> String {
        let [least, most] = self.band();
        let recommended = plimsoll_ledger::recommend(&self.strategies);
        json!({
            "version": 1,
            "model": self.model.name,
            "machine": self.machine.name(),
            "source": self.known.profile.source,
            "bus": self.known.bus,
            "is_estimated": self.known.band.is_some(),
            "size": self.ask.size,
            "steps": self.ask.steps,
            "tiles": self.recipe.tiles,
            "plan_id": self.plan.id,
            "vram_line_bytes": self.plan.line_bytes,
            "components": plimsoll_ledger::components(&self.recipe.graph),
            "ledger": self.ledger,
            "host": self.host,
            "predicted": self.outcome,
            "seconds_band": [least * self.outcome.seconds, most * self.outcome.seconds],
            "binds": plimsoll_ledger::binds(&self.outcome, &self.machine, !self.host.is_cached),
            "verdict": self.verdict,
            "strategies": self.strategies,
            "recommended": recommended.map(|(row, why)| json!({ "name": row.name, "why": why })),
            "curve": self.curve,
        })
        .to_string()
    }
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Plan(error) => Self::Pipeline(PipelineError::from(error)),
            LedgerError::Model(error) => Self::Pipeline(PipelineError::from(error)),
            LedgerError::Ram { .. } => Self::Host(error.to_string()),
            other => Self::Usage(other.to_string()),
        }
    }
}
