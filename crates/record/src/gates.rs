//! The three gates: did it run, is it good, can it be carried again and again.
//!
//! They are judged apart, because each has another remedy and none says anything on the others.

use serde::Serialize;

use crate::criteria::{Criteria, OperationCriteria};
use crate::record::{Load, Record};
use crate::units::{show_bytes, show_seconds};
use crate::words::{Status, words};

words! {
    /// What a gate says.
    Judgement {
        /// Passed.
        Pass = "pass",
        /// Failed.
        Fail = "fail",
        /// Not judged: something is missing that it would be judged by.
        Open = "open",
    }
}

/// A gate's judgement, with its reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gate {
    /// What it says.
    pub judgement: Judgement,
    /// Why, one line each.
    pub reasons: Vec<String>,
}

/// Gathers reasons; a failed one outweighs an open one, and that a passed one.
struct Reasons {
    judgement: Judgement,
    lines: Vec<String>,
}

impl Reasons {
    fn new() -> Self {
        Self { judgement: Judgement::Pass, lines: Vec::new() }
    }

    fn say(&mut self, judgement: Judgement, line: impl Into<String>) {
        self.judgement = match (self.judgement, judgement) {
            (Judgement::Fail, _) | (_, Judgement::Fail) => Judgement::Fail,
            (Judgement::Open, _) | (_, Judgement::Open) => Judgement::Open,
            _ => Judgement::Pass,
        };
        self.lines.push(line.into());
    }

    fn hold(&mut self, is_held: bool, line: impl Into<String>) {
        self.say(if is_held { Judgement::Pass } else { Judgement::Fail }, line);
    }

    fn gate(self) -> Gate {
        Gate { judgement: self.judgement, reasons: self.lines }
    }
}

/// Did this setting run to the end?
pub fn feasibility(record: &Record) -> Gate {
    let mut reasons = Reasons::new();
    match record.run.status {
        Some(Status::Done) => reasons.say(Judgement::Pass, "ran to the end"),
        Some(Status::Cancelled) => {
            reasons.say(Judgement::Open, "cancelled: it was not seen to end")
        }
        Some(status) => {
            let why =
                record.failure.as_ref().map_or("no reason recorded", |reason| &reason.message);
            reasons.say(Judgement::Fail, format!("{status}: {why}"));
        }
        None => reasons.say(Judgement::Open, "the record does not say how it ended"),
    }
    reasons.gate()
}

/// Does the output serve its purpose?
pub fn quality(record: &Record, criteria: &Criteria) -> Gate {
    let mut reasons = Reasons::new();
    let wanted = &criteria.quality;
    if record.run.status != Some(Status::Done) {
        reasons.say(Judgement::Open, "there is no output to judge");
        return reasons.gate();
    }
    for finding in record.findings.iter().filter(|finding| finding.code.fails_quality()) {
        reasons.say(Judgement::Fail, finding.text.clone());
    }
    let measured = record.comparisons.last();
    let needs_reference = wanted.psnr_min_db.is_some() || wanted.ssim_min.is_some();
    match measured {
        None if needs_reference => {
            reasons.say(Judgement::Open, "not measured against a reference");
        }
        None => {}
        Some(measured) => {
            let psnr = measured.psnr_db.map_or("equal".to_owned(), |psnr| format!("{psnr:.2} dB"));
            let against = format!("against {}", measured.reference_id);
            match wanted.psnr_min_db {
                Some(least) => reasons.hold(
                    measured.psnr_db.is_none_or(|psnr| psnr >= least),
                    format!("PSNR {psnr} {against}, {least} dB wanted"),
                ),
                None => reasons.say(Judgement::Pass, format!("PSNR {psnr} {against}")),
            }
            match wanted.ssim_min {
                Some(least) => reasons.hold(
                    measured.ssim >= least,
                    format!("SSIM {:.4} {against}, {least} wanted", measured.ssim),
                ),
                None => {
                    reasons.say(Judgement::Pass, format!("SSIM {:.4} {against}", measured.ssim))
                }
            }
        }
    }
    let verdict = record.verdicts.last();
    for check in &wanted.checks {
        // The newest verdict that speaks of it counts.
        let said = record.verdicts.iter().rev().find_map(|verdict| verdict.checks.0.get(check));
        match said {
            Some(is_pass) => {
                let word = if *is_pass { "passed" } else { "failed" };
                reasons.hold(*is_pass, format!("check {check} {word}"));
            }
            None => reasons.say(Judgement::Open, format!("check {check} was not made")),
        }
    }
    match verdict {
        Some(verdict) => {
            let word = if verdict.is_pass { "passed" } else { "failed" };
            let note = verdict.note.as_ref().map_or(String::new(), |note| format!(": {note}"));
            reasons.hold(verdict.is_pass, format!("a person {word} it{note}"));
            for (check, is_pass) in verdict
                .checks
                .0
                .iter()
                .filter(|(check, is_pass)| !**is_pass && !wanted.checks.contains(*check))
            {
                reasons.hold(*is_pass, format!("check {check} failed"));
            }
        }
        None if wanted.person => reasons.say(Judgement::Open, "no person has judged it"),
        None if reasons.lines.is_empty() => {
            reasons.say(Judgement::Open, "there is nothing that it could be judged by");
        }
        None => {}
    }
    reasons.gate()
}

/// What a run and its repeats took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Attempts: the run and its repeats.
    pub attempts: u64,
    /// Of them, to the end.
    pub done: u64,
    /// Seconds on average, of those.
    pub seconds_mean: Option<f64>,
    /// Seconds that 19 in 20 stay under (nearest rank), of those.
    pub seconds_p95: Option<f64>,
    /// Highest device memory of any.
    pub peak_vram: Option<u64>,
    /// Highest host memory of any.
    pub peak_ram: Option<u64>,
    /// Pictures or answers an hour, failed attempts' time included.
    pub per_hour: Option<f64>,
    /// Tokens written a second (language models).
    pub tokens_per_second: Option<f64>,
    /// Bytes of files of one run at most.
    pub disk_bytes: Option<u64>,
    /// Seconds lost in attempts that did not end well.
    pub seconds_lost: f64,
    /// The same, of all seconds.
    pub retry_share: Option<f64>,
}

/// Figures of a run and its repeats. Cancelled attempts do not count: they say nothing on the load.
pub fn figures(records: &[&Record]) -> Figures {
    let counted: Vec<&&Record> =
        records.iter().filter(|record| record.run.status != Some(Status::Cancelled)).collect();
    let of = |is_done: bool| {
        counted
            .iter()
            .filter(move |record| (record.run.status == Some(Status::Done)) == is_done)
            .map(|record| (&record.load, record.conditions.batch_size.unwrap_or(1)))
            .collect::<Vec<_>>()
    };
    let (done, failed) = (of(true), of(false));
    let seconds = |load: &(&Load, u64)| load.0.elapsed_seconds;
    let mut times: Vec<f64> = done.iter().filter_map(seconds).collect();
    times.sort_by(f64::total_cmp);
    let spent: f64 = times.iter().sum();
    // The sum of no numbers is -0.
    let lost = failed.iter().filter_map(seconds).fold(0.0, |sum, seconds| sum + seconds);
    let all = spent + lost;
    let most = |read: fn(&Load) -> Option<u64>| counted.iter().filter_map(|r| read(&r.load)).max();
    let made: u64 = done.iter().filter(|one| seconds(one).is_some()).map(|(_, batch)| batch).sum();
    let tokens: u64 = done.iter().filter_map(|(load, _)| load.output_tokens).sum();
    Figures {
        attempts: counted.len() as u64,
        done: done.len() as u64,
        seconds_mean: (!times.is_empty()).then(|| spent / times.len() as f64),
        seconds_p95: percentile_95(&times),
        peak_vram: most(|load| load.peak_vram),
        peak_ram: most(|load| load.peak_ram),
        per_hour: (all > 0.0 && made > 0).then(|| made as f64 * 3600.0 / all),
        tokens_per_second: (spent > 0.0 && tokens > 0).then(|| tokens as f64 / spent),
        disk_bytes: most(|load| load.disk_bytes),
        seconds_lost: lost,
        retry_share: (all > 0.0).then(|| lost / all),
    }
}

/// The nearest rank: the smallest value that at least 95 of 100 are not above.
fn percentile_95(sorted: &[f64]) -> Option<f64> {
    let rank = (sorted.len() * 95).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

/// Can this load be carried again and again? Judged over a run and its repeats.
pub fn operation(records: &[&Record], criteria: &Criteria) -> (Gate, Figures) {
    let figures = figures(records);
    let wanted = &criteria.operation;
    let mut reasons = Reasons::new();
    if figures.done < wanted.runs_min {
        let lacking = format!("{} of {} runs to the end", figures.done, wanted.runs_min);
        reasons.say(Judgement::Open, lacking);
    }
    times(&mut reasons, &figures, wanted);
    memory(&mut reasons, &figures, wanted, records);
    if let Some(share) = figures.retry_share {
        let lost = figures.attempts - figures.done;
        let line = format!(
            "{lost} of {} attempts failed, {} lost ({:.0} % of all seconds)",
            figures.attempts,
            show_seconds(figures.seconds_lost),
            share * 100.0,
        );
        let most = wanted.retry_share_max;
        match most {
            Some(most) => {
                reasons.hold(share <= most, format!("{line}, {:.0} % wanted", most * 100.0))
            }
            // A load that fails sometimes cannot be relied on, unless somebody says how much is bearable.
            None => reasons.hold(lost == 0, line),
        }
    }
    (reasons.gate(), figures)
}

fn times(reasons: &mut Reasons, figures: &Figures, wanted: &OperationCriteria) {
    let times = [
        ("mean", figures.seconds_mean, wanted.seconds_mean_max),
        ("p95", figures.seconds_p95, wanted.seconds_p95_max),
    ];
    for (name, measured, most) in times {
        let Some(measured) = measured else { continue };
        let line = format!("{name} {}", show_seconds(measured));
        match most {
            Some(most) => {
                reasons.hold(
                    measured <= most,
                    format!("{line}, at most {} wanted", show_seconds(most)),
                );
            }
            None => reasons.say(Judgement::Pass, line),
        }
    }
    if let Some(rate) = figures.per_hour {
        let line = format!("{rate:.0} an hour");
        match wanted.per_hour_min {
            Some(least) => reasons.hold(rate >= least, format!("{line}, at least {least} wanted")),
            None => reasons.say(Judgement::Pass, line),
        }
    }
    if let Some(rate) = figures.tokens_per_second {
        reasons.say(Judgement::Pass, format!("{rate:.1} tokens a second"));
    }
}

fn memory(
    reasons: &mut Reasons,
    figures: &Figures,
    wanted: &OperationCriteria,
    records: &[&Record],
) {
    let known = |read: fn(&Record) -> Option<u64>| records.iter().filter_map(|r| read(r)).min();
    let line = known(|record| record.conditions.vram_line_bytes);
    let installed = known(|record| record.load.ram_limit);
    let limits = [
        ("VRAM", figures.peak_vram, wanted.peak_vram_max.map(|most| most.0).or(line)),
        ("RAM", figures.peak_ram, wanted.peak_ram_max.map(|most| most.0).or(installed)),
        ("files", figures.disk_bytes, wanted.disk_max.map(|most| most.0)),
    ];
    for (name, measured, most) in limits {
        let Some(measured) = measured else { continue };
        let line = format!("{name} {}", show_bytes(measured));
        match most {
            Some(most) => {
                reasons.hold(measured <= most, format!("{line} of {}", show_bytes(most)));
            }
            None => reasons.say(Judgement::Pass, line),
        }
    }
}

/// The three gates of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gates {
    /// Did it run?
    pub feasibility: Gate,
    /// Is it good?
    pub quality: Gate,
    /// Can it be carried again and again?
    pub operation: Gate,
    /// What the operation gate was judged by.
    pub figures: Figures,
}

/// Judges a run with its repeats.
pub fn judge(record: &Record, repeats: &[Record], criteria: &Criteria) -> Gates {
    let all: Vec<&Record> = std::iter::once(record).chain(repeats).collect();
    let (operation, figures) = operation(&all, criteria);
    Gates {
        feasibility: feasibility(record),
        quality: quality(record, criteria),
        operation,
        figures,
    }
}

/// What helps a load that is too slow, apart from the one axis.
pub fn slow_advice(record: &Record) -> Vec<String> {
    let batch = record.conditions.batch_size.unwrap_or(1);
    let mut advice = vec![format!(
        "batch: more than {batch} at once share each weight's copy, where the memory allows"
    )];
    advice.push(
        "cache: keep the model open and the prompt's encoding, so that a run is its steps only"
            .to_owned(),
    );
    let device = record.conditions.device.as_deref().unwrap_or_default();
    advice.push(match device {
        "cpu" => {
            "faster runtime: a card (--device cuda) in place of the CPU's arithmetic".to_owned()
        }
        _ => "faster runtime: libraries where they are found (--kernels auto), a newer version"
            .to_owned(),
    });
    advice
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::fields::Json;
    use crate::record::{Comparison, Failure, Finding, Verdict};
    use crate::units::Amount;
    use crate::words::FindingCode;

    fn ran(seconds: f64) -> Record {
        let mut record = Record::default();
        record.run.status = Some(Status::Done);
        record.load.elapsed_seconds = Some(seconds);
        record
    }

    fn failed() -> Record {
        let mut record = ran(1.0);
        record.run.status = Some(Status::Failed);
        record.failure = Some(Failure { message: "the disk is full".into(), ..Failure::default() });
        record
    }

    fn verdict(is_pass: bool, checks: &[(&str, bool)]) -> Verdict {
        let checks: BTreeMap<_, _> = checks.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
        Verdict { is_pass, checks: Json(checks), ..Verdict::default() }
    }

    #[test]
    fn a_run_that_ended_says_nothing_on_its_quality_or_operation() {
        let gates = judge(&ran(1.0), &[], &Criteria::default());
        assert_eq!(gates.feasibility.judgement, Judgement::Pass);
        assert_eq!(gates.quality.judgement, Judgement::Open);
        assert_eq!(gates.operation.judgement, Judgement::Open);
        let gates = judge(&failed(), &[], &Criteria::default());
        assert_eq!(gates.feasibility.judgement, Judgement::Fail);
        assert_eq!(
            gates.quality.judgement,
            Judgement::Open,
            "nothing to look at is not bad quality"
        );
        assert!(gates.feasibility.reasons[0].contains("the disk is full"));
    }

    #[test]
    fn quality_needs_a_person_and_findings_outweigh_them() {
        let defaults = Criteria::default();
        let mut record = ran(1.0);
        record.verdicts.push(verdict(true, &[]));
        assert_eq!(quality(&record, &defaults).judgement, Judgement::Pass);
        record.verdicts.push(verdict(false, &[]));
        assert_eq!(quality(&record, &defaults).judgement, Judgement::Fail, "the newest counts");
        record.verdicts.push(verdict(true, &[("identity", false)]));
        assert_eq!(quality(&record, &defaults).judgement, Judgement::Fail, "a failed check");
        record.verdicts.push(verdict(true, &[("identity", true)]));
        assert_eq!(quality(&record, &defaults).judgement, Judgement::Pass);
        for code in [FindingCode::AllBlack, FindingCode::NonFinite, FindingCode::NearConstant] {
            let mut black = record.clone();
            black.findings.push(Finding { code, text: String::new() });
            assert_eq!(quality(&black, &defaults).judgement, Judgement::Fail, "{code}");
        }
        let mut imported = record;
        imported.findings.push(Finding { code: FindingCode::FieldMissing, text: String::new() });
        assert_eq!(quality(&imported, &defaults).judgement, Judgement::Pass);
    }

    #[test]
    fn criteria_of_quality_are_held() {
        let mut criteria = Criteria::default();
        criteria.quality.ssim_min = Some(0.9);
        criteria.quality.psnr_min_db = Some(30.0);
        criteria.quality.checks = vec!["pose".to_owned()];
        criteria.quality.person = false;
        let mut record = ran(1.0);
        assert_eq!(quality(&record, &criteria).judgement, Judgement::Open);
        let measured = |psnr_db, ssim| Comparison {
            created: String::new(),
            reference_id: "r".into(),
            psnr_db,
            ssim,
        };
        record.comparisons.push(measured(Some(31.0), 0.95));
        assert_eq!(quality(&record, &criteria).judgement, Judgement::Open, "the check is missing");
        record.verdicts.push(verdict(true, &[("pose", true)]));
        assert_eq!(quality(&record, &criteria).judgement, Judgement::Pass);
        record.comparisons.push(measured(Some(29.0), 0.95));
        assert_eq!(quality(&record, &criteria).judgement, Judgement::Fail);
        record.comparisons.push(measured(Some(31.0), 0.85));
        assert_eq!(quality(&record, &criteria).judgement, Judgement::Fail);
        record.comparisons.push(measured(None, 1.0));
        assert_eq!(quality(&record, &criteria).judgement, Judgement::Pass, "equal pictures");
    }

    #[test]
    fn operation_is_judged_over_repeats() {
        let repeats = [ran(2.0), ran(3.0)];
        let gates = judge(&ran(1.0), &repeats, &Criteria::default());
        assert_eq!(gates.operation.judgement, Judgement::Pass);
        assert_eq!(gates.figures.seconds_mean, Some(2.0));
        assert_eq!(gates.figures.seconds_p95, Some(3.0));
        assert_eq!(gates.figures.per_hour, Some(1800.0));
        let mut criteria = Criteria::default();
        criteria.operation.seconds_p95_max = Some(2.9);
        assert_eq!(judge(&ran(1.0), &repeats, &criteria).operation.judgement, Judgement::Fail);

        let mut over = ran(1.0);
        over.load.peak_vram = Some(11);
        over.conditions.vram_line_bytes = Some(10);
        let gates = judge(&over, &repeats, &Criteria::default());
        assert_eq!(gates.operation.judgement, Judgement::Fail, "over the line");
        over.load.peak_vram = Some(10);
        over.load.peak_ram = Some(7);
        criteria = Criteria::default();
        criteria.operation.peak_ram_max = Some(Amount(6));
        assert_eq!(judge(&over, &repeats, &criteria).operation.judgement, Judgement::Fail);
    }

    #[test]
    fn failed_attempts_are_the_cost_of_retrying_and_cancelled_ones_are_not() {
        let mut cancelled = ran(100.0);
        cancelled.run.status = Some(Status::Cancelled);
        let repeats = [ran(1.0), ran(1.0), failed(), cancelled];
        let gates = judge(&ran(1.0), &repeats, &Criteria::default());
        assert_eq!(gates.operation.judgement, Judgement::Fail);
        assert_eq!((gates.figures.attempts, gates.figures.done), (4, 3));
        assert_eq!(gates.figures.retry_share, Some(0.25));
        assert_eq!(gates.figures.per_hour, Some(2700.0));
        let mut criteria = Criteria::default();
        criteria.operation.retry_share_max = Some(0.3);
        assert_eq!(judge(&ran(1.0), &repeats, &criteria).operation.judgement, Judgement::Pass);
    }

    #[test]
    fn the_95th_percentile_is_the_nearest_rank() {
        let values: Vec<f64> = (1..=20).map(f64::from).collect();
        assert_eq!(percentile_95(&values), Some(19.0));
        assert_eq!(percentile_95(&values[..19]), Some(19.0));
        assert_eq!(percentile_95(&values[..1]), Some(1.0));
        assert_eq!(percentile_95(&[]), None);
    }
}
