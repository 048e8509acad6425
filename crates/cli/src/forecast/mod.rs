//! `plimsoll plan` for a model and a card by name, and `plimsoll ledger`.

pub(crate) mod args;
mod print;
mod thumb;

mod machine;

use std::path::Path;

use plimsoll_ledger::{
    Answer, Ask, Codings, Curve, FORECAST_VERSION, Fitter, Forecast, ForecastReport, HostLedger,
    Known, KnownModel, LedgerError, NAMES, PartReport, Recipe, Recommendation, RefusalReport,
    StrategyRow, Verdict, advise, curve, host_ledger, known, strategies,
};
use plimsoll_pipeline::{PipelineError, Tiling, check_writable, write_whole};
use plimsoll_plan::{Ledger, Line, Machine, Offload, Plan, PlanError, Request, explain};

pub(crate) use thumb::run as ledger;

use args::{CodingName, CurveArg};

use crate::args::PlanArgs;
use crate::failure::Failure;
use crate::{out, outputs};

/// Lines of a curve that is drawn.
const CURVE_LINES: usize = 50;
/// What a disk is taken to read in a second where nothing is said of it: an NVMe drive behind PCIe 3.
const DISK_BYTES_PER_SECOND: f64 = 3.5e9;

/// All that is told of a run by name.
struct Told {
    model: KnownModel,
    ask: Ask,
    known: Known,
    recipe: Recipe,
    plans: Vec<Plan>,
    ledgers: Vec<Ledger>,
    outcome: plimsoll_ledger::Outcome,
    host: HostLedger,
    verdict: Verdict,
    /// Where they were asked for.
    strategies: Vec<StrategyRow>,
    /// Which of all strategies to take, in lines of text.
    advised: String,
    curve: Option<Curve>,
    machine: Forecast,
    warnings: Vec<String>,
}

pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    if args.run.transformer.is_some() {
        let what =
            format!("{} is planned from its shapes: --transformer is for folders", args.run.model);
        return Err(Failure::Usage(what));
    }
    let model = known(&args.run.model).map_err(|error| not_published(&args.run.model, error))?;
    let ask = ask(args, &model)?;
    check_drawings(args)?;
    let (known, machine, mut warnings) = machine::of(args)?;
    let request = Request {
        line: args.run.vram.0,
        offload: args.run.offload(),
        prefetch: args.run.prefetch.is_on(),
    };
    let mut fitter = Fitter::new(&model, &ask);
    let mut machine = machine;
    let mut fit = match fitter.fit(&machine, &request) {
        Ok(fit) => fit,
        Err(LedgerError::Plan(error @ PlanError::Infeasible { .. })) => {
            return refuse(args, &model, &ask, &machine, &request, error);
        }
        Err(error) => return Err(error.into()),
    };
    let ram = args.run.ram.map(|size| size.0);
    let streamed = fit.outcome.copied_bytes_per_step;
    let mut host = host_ledger(fitter.recipe(&fit.ask)?, streamed, ram)?;
    if !host.is_cached {
        // RAM does not hold what a step streams, so the disk is the bus.
        machine = machine.behind(disk(args, &mut warnings));
        fit = fitter.fit(&machine, &request)?;
        let streamed = fit.outcome.copied_bytes_per_step;
        host = host_ledger(fitter.recipe(&fit.ask)?, streamed, ram)?;
    }
    // As the plan has it: of `min` and `max` too.
    let line = Line::Bytes(fit.plans.iter().map(|plan| plan.line_bytes).max().unwrap_or(1));
    let all = || strategies(&model, &ask, &machine, line);
    let (rows, advised) = if args.forecast.strategies {
        let rows = all()?;
        let advised = print::recommendation(&rows);
        (rows, advised)
    } else if args.run.json {
        (Vec::new(), String::new())
    } else {
        // What was asked for has its answer without them.
        (Vec::new(), all().map_or_else(|_| String::new(), |rows| print::recommendation(&rows)))
    };
    let lines = match &args.forecast.curve {
        Some(CurveArg::Lines(count)) => Some(*count),
        Some(CurveArg::File(_)) => Some(CURVE_LINES),
        None => None,
    };
    let drawn = lines.map(|count| curve(&model, &ask, &machine, !host.is_cached, count));
    let drawn = drawn.transpose()?;
    let title = format!("{} on {}", model.name, machine.name());
    if let (Some(CurveArg::File(path)), Some(drawn)) = (&args.forecast.curve, &drawn) {
        write(path, &plimsoll_ledger::curve_svg(drawn, &title, machine.vram_bytes()))?;
    }
    let recipe = fitter.recipe(&fit.ask)?.clone();
    if let (Some(path), Some(plan)) = (&args.forecast.timeline, fit.plans.first()) {
        write(path, &plimsoll_ledger::timeline_svg(&recipe.graph, plan, &machine, &title))?;
    }
    let verdict = advise(&model, &ask, &machine, line, request.offload)?;
    let ledgers =
        recipe.parts().zip(&fit.plans).map(|(part, plan)| explain(&part.graph, plan)).collect();
    let told = Told {
        ask: fit.ask,
        known,
        recipe,
        plans: fit.plans,
        ledgers,
        outcome: fit.outcome,
        host,
        verdict,
        strategies: rows,
        advised,
        // What was drawn is not listed as well.
        curve: drawn.filter(|_| matches!(args.forecast.curve, Some(CurveArg::Lines(_)))),
        machine,
        model,
        warnings,
    };
    if args.run.json {
        return json(&Answer::Forecast(Box::new(told.report())));
    }
    for warning in &told.warnings {
        out::notice(warning);
    }
    out::result(&told.text())
}

/// A model that is here in files has its plan without the options of a forecast.
fn not_published(model: &str, error: LedgerError) -> Failure {
    if model != "demo" && !Path::new(model).exists() {
        return error.into();
    }
    Failure::Usage(format!(
        "{model} is planned from its files: --gpu, --strategies, --curve, --timeline and other options of forecasts take \
         --model with a published name only: {}",
        NAMES.join(", ")
    ))
}

/// Bytes a second of the disk behind the page cache.
fn disk(args: &PlanArgs, warnings: &mut Vec<String>) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "seconds are an estimate")]
    let asked = args.forecast.disk.map(|size| size.0 as f64);
    asked.unwrap_or_else(|| {
        warnings.push(format!(
            "--ram does not hold what a step streams: a disk of {:.1} GB/s is assumed, say with --disk how fast it is",
            DISK_BYTES_PER_SECOND / 1e9
        ));
        DISK_BYTES_PER_SECOND
    })
}

/// A run that does not fit: the one-line error, after the changes that would help.
fn refuse(
    args: &PlanArgs,
    model: &KnownModel,
    ask: &Ask,
    machine: &Forecast,
    request: &Request,
    error: PlanError,
) -> Result<(), Failure> {
    let verdict = advise(model, ask, machine, request.line, request.offload)?;
    let failure = Failure::Pipeline(PipelineError::from(error));
    if args.run.json {
        json(&Answer::Refusal(Box::new(RefusalReport {
            version: FORECAST_VERSION,
            model: model.name.to_owned(),
            machine: machine.name().to_owned(),
            error: failure.text(),
            verdict,
        })))?;
    } else {
        out::result(&print::changes(&verdict))?;
    }
    Err(failure)
}

fn json(answer: &Answer) -> Result<(), Failure> {
    let text = serde_json::to_string(answer).map_err(|error| Failure::Host(error.to_string()))?;
    out::result(&text)
}

fn ask(args: &PlanArgs, model: &KnownModel) -> Result<Ask, Failure> {
    let (run, forecast) = (&args.run, &args.forecast);
    let defaults = model.defaults();
    let [width, height, frames] = defaults.size;
    let [width, height] = match forecast.size {
        Some(size) => size.0,
        None => [run.width.unwrap_or(width), run.height.unwrap_or(height)],
    };
    let stored = run.dtype.is_transformer_narrow();
    let denoiser = match (forecast.weights, stored) {
        (Some(_), Some(_)) => {
            let what = "--weights and --dtype transformer=... say the same thing: give one of them";
            return Err(Failure::Usage(what.to_owned()));
        }
        (Some(name), None) => name,
        (None, Some(true)) => CodingName::Fp8,
        (None, _) => CodingName::Bf16,
    };
    let text = forecast.text_weights.unwrap_or(CodingName::Bf16);
    Ok(Ask {
        size: [width, height, forecast.frames.unwrap_or(frames)],
        steps: run.steps.unwrap_or(defaults.steps),
        samples: run.count,
        text_tokens: run.text_tokens.unwrap_or(defaults.text_tokens).min(defaults.text_tokens),
        dtype: run.dtype.run(),
        hoist: run.hoist.is_on(),
        row_chunks: forecast.row_chunks,
        tile: match run.vae_tile {
            Some(Tiling::Off) => Some(0),
            Some(Tiling::Edge(side)) => Some(side),
            Some(Tiling::Auto) | None => None,
        },
        codings: Codings { denoiser: denoiser.coding(), text: text.coding() },
        packed: true,
        lora_rank: forecast.lora_rank.unwrap_or(0),
        controlnets: forecast.controlnets.unwrap_or(0),
    })
}

/// Drawings can be written, and none takes the place of what is more than a drawing.
fn check_drawings(args: &PlanArgs) -> Result<(), Failure> {
    let forecast = &args.forecast;
    let curve = match &forecast.curve {
        Some(CurveArg::File(path)) => Some(path),
        Some(CurveArg::Lines(_)) | None => None,
    };
    for path in [curve, forecast.timeline.as_ref()].into_iter().flatten() {
        check_writable(path).map_err(PipelineError::from)?;
        outputs::refuse_taken_of(path, &args.run, None)?;
    }
    if let Some(path) = curve.filter(|path| Some(*path) == forecast.timeline.as_ref()) {
        let what = format!("--timeline and --curve are both {}", path.display());
        return Err(Failure::Usage(what));
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    Ok(write_whole(path, text.as_bytes()).map_err(PipelineError::from)?)
}

impl Told {
    /// Least and most seconds, as shares; of what was measured the same.
    fn band(&self) -> [f64; 2] {
        self.known.band.unwrap_or([1.0, 1.0])
    }

    fn report(&self) -> ForecastReport {
        let band = self.band().map(|share| share * self.outcome.seconds);
        let recommended = plimsoll_ledger::recommend(&self.strategies);
        let first = self.plans.first();
        let parts = self.recipe.parts().zip(&self.ledgers);
        ForecastReport {
            version: FORECAST_VERSION,
            model: self.model.name.to_owned(),
            machine: self.machine.name().to_owned(),
            source: self.known.profile.source.clone(),
            bus: self.known.bus.clone(),
            link_bytes_per_second: self.machine.link_bytes_per_second(),
            is_estimated: self.known.band.is_some(),
            runs: self.model.runs_as(&self.ask),
            size: self.ask.size,
            steps: self.ask.steps,
            samples: self.ask.samples,
            lora_rank: self.ask.lora_rank,
            controlnets: self.ask.controlnets,
            row_chunks: self.ask.row_chunks.unwrap_or(1),
            vae_tile: self.ask.tile.unwrap_or(0),
            vram_line_bytes: self.plans.iter().map(|plan| plan.line_bytes).max().unwrap_or(0),
            offload: first.map_or(Offload::Auto, |plan| plan.offload).to_string(),
            prefetch: first.is_some_and(|plan| plan.prefetch),
            components: self.recipe.components(),
            parts: parts
                .map(|(part, ledger)| PartReport::new(ledger, part.steps, part.tiles))
                .collect(),
            host: self.host,
            predicted: self.outcome,
            seconds_band: band,
            binds: plimsoll_ledger::binds(&self.outcome, &self.machine, !self.host.is_cached),
            verdict: self.verdict.clone(),
            strategies: self.strategies.clone(),
            recommended: recommended
                .map(|(row, why)| Recommendation { name: row.name.clone(), why }),
            curve: self.curve.clone(),
            warnings: self.warnings.clone(),
        }
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
