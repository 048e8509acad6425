//! Times of a run: events that keep time, recorded among its work and read when it is over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_device::{Program, RunStats, Span, SpanKind};

use crate::CudaError;
use crate::driver::{Context, Event, Stream};
use crate::signals::lock;

/// Timed events of a run, taken before it.
pub(super) struct Clock {
    begin: Event,
    ends: [Event; 2],
    marks: Vec<(Event, AtomicBool)>,
    /// Begin and end of each span; as many as were announced.
    spans: Vec<[Event; 2]>,
    noted: Mutex<Vec<(SpanKind, u32, Option<u32>)>>,
}

impl Clock {
    pub(super) fn new(context: &Arc<Context>, program: &Program<'_>) -> Result<Self, CudaError> {
        let timed = || Event::timed(context);
        let count = if program.trace { program.command_count } else { 0 };
        let spans =
            (0..count).map(|_| Ok([timed()?, timed()?])).collect::<Result<Vec<_>, CudaError>>()?;
        let marks = (0..program.mark_count)
            .map(|_| Ok((timed()?, AtomicBool::new(false))))
            .collect::<Result<Vec<_>, CudaError>>()?;
        Ok(Self {
            begin: timed()?,
            ends: [timed()?, timed()?],
            marks,
            noted: Mutex::new(Vec::with_capacity(spans.len())),
            spans,
        })
    }

    /// Events of the next span; `None` where none is kept.
    pub(super) fn next_span(
        &self,
        kind: SpanKind,
        index: u32,
        step: Option<u32>,
    ) -> Option<&[Event; 2]> {
        let mut noted = lock(&self.noted);
        let events = self.spans.get(noted.len())?;
        noted.push((kind, index, step));
        Some(events)
    }

    /// When the run began, on the compute lane's stream.
    pub(super) fn begin(&self) -> &Event {
        &self.begin
    }

    /// When a lane ended.
    pub(super) fn end(&self, lane: usize) -> &Event {
        &self.ends[lane]
    }

    /// Sets a mark.
    pub(super) fn mark(&self, mark: usize, stream: &Stream) -> Result<(), CudaError> {
        let (event, is_set) = &self.marks[mark];
        stream.record(event)?;
        is_set.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// What was timed; streams are empty.
    pub(super) fn read(self) -> Result<RunStats, CudaError> {
        let Self { begin, ends, marks, spans, noted } = self;
        let since = |event: &Event| event.seconds_since(&begin);
        let mut found = Vec::with_capacity(spans.len());
        let noted = noted.into_inner().unwrap_or_else(PoisonError::into_inner);
        for ((kind, index, step), [start, end]) in noted.into_iter().zip(&spans) {
            found.push(Span { kind, index, step, start: since(start)?, end: since(end)? });
        }
        found.sort_by(|one, other| one.end.total_cmp(&other.end));
        let mark = |(event, is_set): &(Event, AtomicBool)| {
            if is_set.load(Ordering::SeqCst) { since(event) } else { Ok(0.0) }
        };
        Ok(RunStats {
            seconds: since(&ends[0])?.max(since(&ends[1])?),
            marks: marks.iter().map(mark).collect::<Result<_, _>>()?,
            spans: found,
            ..RunStats::default()
        })
    }
}
