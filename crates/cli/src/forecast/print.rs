//! A forecast as text, for a terminal of 100 columns.

use std::fmt::Write as _;

use plimsoll_ledger::{ComponentRow, Curve, Quality, StrategyRow, Verdict, recommend};
use plimsoll_plan::{Bytes, Ledger, Machine};

use super::Told;

const ON_PAPER: &str = "* on paper: no device of this program runs it yet";

/// Writing to a `String` does not fail.
macro_rules! line {
    ($out:expr) => { let _ = writeln!($out); };
    ($out:expr, $($arg:tt)*) => { let _ = writeln!($out, $($arg)*); };
}

impl Told {
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        self.head(&mut out);
        self.components(&mut out);
        for (part, found) in self.recipe.parts().zip(&self.ledgers) {
            line!(out);
            if self.ledgers.len() > 1 {
                line!(out, "for {} steps, then what follows, in the same memory:", part.steps);
            }
            ledger(&mut out, found);
        }
        self.host(&mut out);
        self.seconds(&mut out);
        if !self.strategies.is_empty() {
            strategies(&mut out, &self.strategies);
        }
        if let Some(curve) = &self.curve {
            self.curve(&mut out, curve);
        }
        line!(out);
        out += &self.advised;
        out += &changes(&self.verdict);
        out
    }

    fn head(&self, out: &mut String) {
        let [width, height, frames] = self.ask.size;
        let frames = if frames > 1 { format!(", {frames} frames") } else { String::new() };
        line!(out, "{} {width}x{height}{frames}, {} steps", self.model.name, self.ask.steps);
        line!(
            out,
            "on {}, {} at {:.1} GB/s\nrates: {}",
            self.machine.name(),
            self.known.bus,
            self.machine.link_bytes_per_second() / 1e9,
            self.known.profile.source
        );
        self.beside(out);
        if !self.model.runs_as(&self.ask) {
            line!(out, "on paper: no device of this program runs it yet");
        }
    }

    /// What is beside the model, and the pieces that it is taken in.
    fn beside(&self, out: &mut String) {
        let mut told = Vec::new();
        if self.ask.lora_rank > 0 {
            told.push(format!("a LoRA of rank {}", self.ask.lora_rank));
        }
        if self.ask.controlnets > 0 {
            told.push(format!("{} ControlNets", self.ask.controlnets));
        }
        if let Some(pieces) = self.ask.row_chunks.filter(|pieces| *pieces > 1) {
            told.push(format!("tokens in {pieces} pieces"));
        }
        if let Some(side) = self.ask.tile.filter(|side| *side > 0) {
            told.push(format!("decode in tiles of {side} pixels"));
        }
        if !told.is_empty() {
            line!(out, "with {}", told.join(", "));
        }
    }

    fn components(&self, out: &mut String) {
        line!(out);
        line!(
            out,
            "{:<16} {:>16} {:>10} {:>10} {:>8} {:>12}",
            "component",
            "parameters",
            "on device",
            "on host",
            "blocks",
            "moves as"
        );
        let rows = self.recipe.components();
        for row in &rows {
            line!(
                out,
                "{:<16} {:>16} {:>10} {:>10} {:>8} {:>12}",
                row.component,
                row.parameters,
                Bytes(row.device_bytes).to_string(),
                Bytes(row.table_bytes).to_string(),
                row.blocks,
                Bytes(row.largest_block_bytes).to_string()
            );
        }
        self.order(out, &rows);
    }

    /// What leaves before what comes, where both together are over the line.
    fn order(&self, out: &mut String, rows: &[ComponentRow]) {
        let bytes = |is_text: bool| -> u64 {
            let is_it = |row: &&ComponentRow| row.component.starts_with("text_encoder") == is_text;
            rows.iter().filter(is_it).map(|row| row.device_bytes).sum()
        };
        let line = self.ledgers.iter().map(|ledger| ledger.line_bytes).max().unwrap_or(0);
        if bytes(true).saturating_add(bytes(false)) > line {
            line!(
                out,
                "order: prompts are encoded first, and the text encoders leave before the first step"
            );
        }
    }

    fn host(&self, out: &mut String) {
        let host = &self.host;
        line!(
            out,
            "host: {} in mapped files, {} anonymous, {} pinned beside them\nKV cache: {} (a diffusion model has none)",
            Bytes(host.file_bytes),
            Bytes(host.anonymous_bytes),
            Bytes(host.pinned_bytes),
            host.kv_cache_bytes
        );
        if !host.is_cached {
            line!(out, "host: RAM does not hold what a step streams: it comes from disk each time");
        }
    }

    fn seconds(&self, out: &mut String) {
        let (now, [least, most]) = (&self.outcome, self.band());
        let binds = plimsoll_ledger::binds(now, &self.machine, !self.host.is_cached);
        let kind = if self.known.band.is_some() { "estimated" } else { "from measured rates" };
        line!(
            out,
            "seconds ({kind}): {:.3} a step of which arithmetic {:.3}, bound by {}; {:.1} a picture",
            now.seconds_per_step,
            now.compute_seconds_per_step,
            binds.name(),
            now.seconds
        );
        if self.known.band.is_some() {
            line!(
                out,
                "band: {:.3} to {:.3} a step, {:.1} to {:.1} a picture",
                least * now.seconds_per_step,
                most * now.seconds_per_step,
                least * now.seconds,
                most * now.seconds
            );
        }
        let tiles = self.recipe.parts().map(|part| part.tiles).max().unwrap_or(1);
        if tiles > 1 {
            line!(out, "the decode is of {tiles} tiles; the ledger shows one");
        }
    }

    fn curve(&self, out: &mut String, curve: &Curve) {
        let card_bytes = self.machine.vram_bytes();
        line!(out);
        line!(
            out,
            "{:>10} {:>10} {:>9} {:>10} {:>8}",
            "line",
            "bytes/step",
            "s/step",
            "s/picture",
            "binds"
        );
        for (at, point) in curve.points.iter().enumerate() {
            let is_first_beyond =
                at == curve.points.partition_point(|point| point.line_bytes <= card_bytes);
            let free = match curve.free_from {
                Some(first) if first == at && is_first_beyond => {
                    "  streaming is free from here; the card ends before"
                }
                Some(first) if first == at => "  streaming is free from here",
                _ if is_first_beyond => "  the card ends before",
                _ => "",
            };
            line!(
                out,
                "{:>10} {:>10} {:>9.3} {:>10.2} {:>8}{free}",
                Bytes(point.line_bytes).to_string(),
                Bytes(point.outcome.copied_bytes_per_step).to_string(),
                point.outcome.seconds_per_step,
                point.outcome.seconds,
                point.binds.name()
            );
        }
    }
}

/// The ledger by phase, its fullest row marked.
fn ledger(out: &mut String, ledger: &Ledger) {
    line!(
        out,
        "line {}: arena {} and {} beside it (context, code, libraries)",
        Bytes(ledger.line_bytes),
        Bytes(ledger.arena_bytes),
        Bytes(ledger.reserved_bytes)
    );
    line!(
        out,
        "{:<21} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10}",
        "phase",
        "stay/copy",
        "resident",
        "slots",
        "activat.",
        "scratch",
        "live",
        "copied"
    );
    let fullest = ledger.rows.iter().map(|row| row.live_bytes).max();
    for row in &ledger.rows {
        let mark = if Some(row.live_bytes) == fullest { '*' } else { ' ' };
        line!(
            out,
            "{:<21} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}{mark} {:>10}",
            row.phase,
            format!("{}/{}", row.resident_units, row.streamed_units),
            Bytes(row.resident_bytes).to_string(),
            Bytes(row.slot_bytes).to_string(),
            Bytes(row.activation_bytes).to_string(),
            Bytes(row.workspace_bytes).to_string(),
            Bytes(row.live_bytes).to_string(),
            Bytes(row.copied_bytes).to_string()
        );
    }
    let peak = &ledger.peak;
    line!(
        out,
        "* peak at {}/{}: weights {}, activations {}, scratch {}",
        peak.block,
        peak.op,
        Bytes(peak.weight_bytes),
        Bytes(peak.tensor_bytes),
        Bytes(peak.workspace_bytes)
    );
}

fn strategies(out: &mut String, rows: &[StrategyRow]) {
    line!(out);
    line!(
        out,
        "{:<22} {:>10} {:>4} {:>10} {:>8} {:>8} {:>9}  note",
        "strategy",
        "needs",
        "fits",
        "over bus",
        "extra s",
        "s/step",
        "s/picture"
    );
    for row in rows {
        let now = &row.outcome;
        let quality = match row.quality {
            Quality::Exact => "exact",
            Quality::NearlyLossless => "nearly lossless",
            Quality::SlightLoss => "a slight loss",
        };
        let note = format!("{quality}{}", if row.runs { "" } else { "*" });
        line!(
            out,
            "{:<22} {:>10} {:>4} {:>10} {:>8.1} {:>8.3} {:>9.1}  {note}",
            row.name,
            Bytes(now.vram_bytes).to_string(),
            if row.fits { "yes" } else { "no" },
            Bytes(now.copied_bytes).to_string(),
            now.extra_seconds(),
            now.seconds_per_step,
            now.seconds
        );
    }
    if rows.iter().any(|row| !row.runs) {
        line!(out, "{ON_PAPER}");
    }
}

/// Which strategy to take, and why; nothing where there are none.
pub(super) fn recommendation(rows: &[StrategyRow]) -> String {
    let mut out = String::new();
    match recommend(rows) {
        Some((row, why)) => {
            line!(out, "recommended: {}\nsince: {why}", row.name);
            let today = rows.iter().filter(|row| row.fits && row.runs);
            let today = today.min_by(|a, b| a.outcome.seconds.total_cmp(&b.outcome.seconds));
            if let (false, Some(today)) = (row.runs, today) {
                line!(out, "of what runs today: {}, {:.1} s", today.name, today.outcome.seconds);
            }
        }
        None if rows.is_empty() => {}
        None => {
            line!(out, "nothing fits");
        }
    }
    out
}

/// What to change, or what more memory buys.
pub(super) fn changes(verdict: &Verdict) -> String {
    let mut out = String::new();
    match verdict {
        Verdict::Fits { buys, outcome } if buys.is_empty() => {
            line!(
                out,
                "a higher line buys nothing: a picture takes {:.1} s there too",
                outcome.seconds
            );
        }
        Verdict::Fits { buys, outcome } => {
            for (bytes, seconds) in buys {
                let share = 100.0 * (1.0 - seconds / outcome.seconds);
                let line = Bytes(*bytes);
                line!(out, "a line of {line} buys {share:.0} %: {seconds:.1} s a picture");
            }
        }
        Verdict::DoesNotFit { smallest_bytes, changes } => {
            line!(out, "the smallest line that works is {}", Bytes(*smallest_bytes));
            line!(
                out,
                "{:<46} {:>10} {:>4} {:>9}  cost",
                "one change",
                "smallest",
                "fits",
                "s/picture"
            );
            for change in changes {
                let paper = if change.runs { "" } else { "*" };
                line!(
                    out,
                    "{:<46} {:>10} {:>4} {:>9.1}  {}{paper}",
                    change.what,
                    Bytes(change.smallest_bytes).to_string(),
                    if change.fits { "yes" } else { "no" },
                    change.seconds,
                    change.cost
                );
            }
            if changes.iter().any(|change| !change.runs) {
                line!(out, "{ON_PAPER}");
            }
        }
    }
    out
}
