//! A card's lanes: order, host memory in all ways, cancelling, failures, marks and meters.
//!
//! Run the test's binary on a machine with a card: `card_lanes-HASH --include-ignored --test-threads 1`.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
#![allow(missing_docs)]

#[path = "../card/mod.rs"]
mod card;
#[path = "../../../device/tests/common/mod.rs"]
mod common;
mod stream;

use std::time::Instant;

use common::{Random, contract};
use plimsoll_device::{Control, Device, DeviceError, RunStats, SpanKind};
use plimsoll_device_cuda::{Card, CudaDevice, CudaError, HostOptions};
use plimsoll_graph::OpKind;
use stream::{SOURCES, Source, Stream};

fn card_device(arena_bytes: u64) -> Option<CudaDevice> {
    card::device(arena_bytes, card::options())
}

#[test]
#[ignore = "needs a CUDA card"]
fn random_streams_give_the_hosts_bits_from_every_source() {
    let Some(mut device) = card_device(64 << 20) else { return };
    let mut random = Random(11);
    for round in 0..60 {
        let stream = Stream::new(&mut random);
        let expected = stream.expected();
        for source in SOURCES {
            stream.list(&mut device, source);
            device.reset_pattern().unwrap();
            let (stats, bytes) = stream.run(&mut device, source, &Control::default()).unwrap();
            assert!(bytes == expected, "round {round}, {source:?}: other bits");
            assert_eq!(device.registered_bytes() > 0, source == Source::Mapped, "{source:?}");
            let per_step = stream.layers as u64 * stream.slot_bytes();
            assert_eq!(stats.copied_bytes_by_step, vec![per_step; stream.steps as usize]);
            let all = per_step * u64::from(stream.steps) + stream.slot_bytes();
            assert_eq!(stats.copied_bytes, all);
            assert_eq!(stats.high_water_bytes, stream.arena_bytes());
            assert!(stats.marks.windows(2).all(|pair| pair[0] <= pair[1]));
            assert!(stats.seconds >= stats.marks[stream.steps as usize]);
        }
        stream.list(&mut device, Source::Memory);
        assert_eq!(device.registered_bytes(), 0, "everything is taken back");
    }
    assert!(device.notices().is_empty(), "{:?}", device.notices());
}

#[test]
#[ignore = "needs a CUDA card"]
fn a_file_beyond_the_budget_is_partly_lent_with_the_same_bits() {
    let mut options = card::options();
    options.host = HostOptions { registered_bytes_max: Some(3 << 20), ..options.host };
    let Some(mut device) = card::device(64 << 20, options) else { return };
    let stream = Stream::long(&mut Random(3));
    stream.list(&mut device, Source::Mapped);
    let (_, bytes) = stream.run(&mut device, Source::Mapped, &Control::default()).unwrap();
    assert!(bytes == stream.expected());
    assert_eq!(device.registered_bytes(), 3 << 20);
    assert_eq!(device.notices().len(), 1, "{:?}", device.notices());
}

#[test]
#[ignore = "needs a CUDA card"]
fn a_trace_shows_copies_before_their_readers() {
    let Some(mut device) = card_device(64 << 20) else { return };
    let mut stream = Stream::long(&mut Random(4));
    stream.repeat = 1;
    for source in SOURCES {
        stream.list(&mut device, source);
        let program = stream.program(source, true);
        let stats =
            device.run(&program, &Control::default(), &mut |queue| stream.drive(queue)).unwrap();
        let total = stream.total();
        assert_eq!(stats.spans.len(), 2 * total + 2);
        let span = |kind, index: usize| {
            *stats.spans.iter().find(|s| s.kind == kind && s.index as usize == index).unwrap()
        };
        // Clocks of events are good to half a microsecond.
        let grain = 1e-6;
        for at in 0..total {
            let (copy, op) = (span(SpanKind::Copy, at), span(SpanKind::Op, at));
            assert!(copy.end <= op.start + grain, "op {at} began before its weights were there");
            if at >= stream.slots {
                let reader = span(SpanKind::Op, at - stream.slots);
                assert!(reader.end <= copy.start + grain, "copy {at} overran a reader");
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA card"]
fn a_cancelled_device_runs_again_with_the_same_bits_and_memory() {
    let Some(mut device) = card_device(64 << 20) else { return };
    let mut random = Random(8);
    let stream = Stream::long(&mut random);
    let whole = stream.expected();
    let mut cancelled = 0;
    let mut held = None;
    for round in 0..100 {
        let source = SOURCES[round % SOURCES.len()];
        stream.list(&mut device, source);
        let begin = Instant::now();
        let (_, again) = stream.run(&mut device, source, &Control::default()).unwrap();
        let usual = begin.elapsed();
        assert!(again == whole, "round {round}: other bits after a cancelled run");
        let control = Control::default();
        let delay = usual.mul_f64(random.below(1000) as f64 / 1000.0);
        let result = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(delay);
                control.cancel();
            });
            stream.run(&mut device, source, &control)
        });
        match result {
            Err(DeviceError::Cancelled) => cancelled += 1,
            Ok((_, bytes)) => assert!(bytes == whole),
            Err(other) => panic!("{other}"),
        }
        let now = device.card().held_bytes().unwrap();
        // After the first rounds everything is taken that ever will be.
        if round >= 8 {
            assert_eq!(*held.get_or_insert(now), now, "round {round}: other memory");
        }
    }
    assert!(cancelled >= 20, "only {cancelled} runs were cancelled in time");
    let control = Control::default();
    control.cancel();
    let refused = stream.run(&mut device, Source::Memory, &control);
    assert!(matches!(refused, Err(DeviceError::Cancelled)));
}

#[test]
#[ignore = "needs a CUDA card"]
fn cancelling_wakes_a_lane_that_waits_for_ever() {
    let Some(mut device) = card_device(64 << 20) else { return };
    let stream = Stream::new(&mut Random(1));
    let program = stream.program(Source::Memory, false);
    contract::cancelling_wakes_a_lane_that_waits_for_ever(&mut device, &program);
}

#[test]
#[ignore = "needs a CUDA card"]
fn a_full_ring_and_a_full_pool_make_the_caller_wait() {
    let Some(mut device) = card_device(64 << 20) else { return };
    let stream = Stream::new(&mut Random(2));
    let program = stream.program(Source::Memory, false);
    contract::a_full_ring_makes_the_caller_wait(&mut device, &program);
}

#[test]
#[ignore = "needs a CUDA card"]
fn a_lane_that_fails_is_an_error_and_the_device_goes_on() {
    let Some(mut device) = card_device(64 << 20) else { return };
    let stream = Stream::new(&mut Random(5));
    let program = stream.program(Source::Memory, false);
    contract::a_lane_that_fails_is_an_error(&mut device, &program);
    let (_, bytes) = stream.run(&mut device, Source::Memory, &Control::default()).unwrap();
    assert!(bytes == stream.expected());
}

#[test]
#[ignore = "needs a CUDA card"]
fn a_program_cannot_leave_the_arena() {
    let stream = Stream::new(&mut Random(6));
    let Some(mut device) = card_device(stream.arena_bytes()) else { return };
    for far in [stream.arena_bytes() - 4, 1 << 40, u64::MAX - 3] {
        let mut program = stream.program(Source::Memory, false);
        if let OpKind::AddWeight { weight, .. } = &mut program.ops[0].op.kind {
            weight.offset = far;
        }
        let refused = device.run(&program, &Control::default(), &mut |_| panic!("started"));
        if stream.elements > 1 {
            assert!(matches!(refused, Err(DeviceError::OutOfArena { .. })), "{refused:?}");
        }
        let mut program = stream.program(Source::Memory, false);
        program.copies[0].segments[0].target = far;
        let refused = device.run(&program, &Control::default(), &mut |_| panic!("started"));
        assert!(matches!(refused, Err(DeviceError::OutOfArena { .. })), "{refused:?}");
    }
}

#[test]
#[ignore = "needs a CUDA card"]
fn copies_cast_to_nearest_even() {
    let Some(mut device) = card_device(64 << 20) else { return };
    contract::copies_cast_to_nearest_even(&mut device, 9_000_000);
}

#[test]
#[ignore = "needs a CUDA card"]
fn the_high_water_mark_is_found_by_the_pattern() {
    let Some(mut device) = card_device(10_001) else { return };
    assert_eq!(device.high_water_bytes().unwrap(), 0);
    let reset = |device: &mut CudaDevice| device.reset_pattern().unwrap();
    contract::the_high_water_mark_is_found_by_the_pattern(&mut device, reset);
}

#[test]
#[ignore = "needs a CUDA card"]
fn one_card_serves_line_after_line() {
    let Some(mut device) = card_device(64 << 20) else { return };
    let mut random = Random(12);
    let mut held = Vec::new();
    for round in 0..20 {
        for arena_bytes in [2 << 30, 64 << 20, 600 << 20] {
            device.retake(arena_bytes).unwrap();
            let stream = Stream::new(&mut random);
            let (_, bytes) = stream.run(&mut device, Source::Memory, &Control::default()).unwrap();
            assert!(bytes == stream.expected(), "round {round}: other bits");
            held.push(device.held_bytes().unwrap());
            if round > 1 {
                assert_eq!(held[held.len() - 4], held[held.len() - 1], "device bytes grow");
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA card"]
fn a_lent_file_that_shrinks_is_read_to_the_end() {
    let Some(mut device) = card_device(64 << 20) else { return };
    let stream = Stream::long(&mut Random(13));
    stream.list(&mut device, Source::Mapped);
    let (_, bytes) = stream.run(&mut device, Source::Mapped, &Control::default()).unwrap();
    assert!(bytes == stream.expected());
    // The card keeps the pages that it was lent; that the file has changed is found by comparing it, not by a fault.
    stream.shrink(4096);
    stream.run(&mut device, Source::Mapped, &Control::default()).unwrap();
}

/// Not a check but a figure: how fast each way is, for 8 GiB in copies of 256 MiB.
#[test]
#[ignore = "needs a CUDA card"]
fn rates_of_the_ways() {
    let Some(mut device) = card_device(1 << 30) else { return };
    let mut stream = Stream::of(4, 1 << 26, |at| (at % 9) as f32);
    stream.steps = 8;
    for source in SOURCES {
        stream.list(&mut device, source);
        let rate = |stats: &RunStats| stats.copied_bytes as f64 / stats.seconds / 1e9;
        let begin = Instant::now();
        let (first, _) = stream.run(&mut device, source, &Control::default()).unwrap();
        let whole = begin.elapsed();
        let (second, _) = stream.run(&mut device, source, &Control::default()).unwrap();
        println!(
            "{source:?}: {:.1} then {:.1} GB/s into the arena; first run {whole:.2?} with preparation",
            rate(&first),
            rate(&second)
        );
    }
}

#[test]
#[ignore = "needs a CUDA card"]
fn what_is_held_is_what_was_said() {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let Some(card) = card::open(card::options()) else { return };
    let (reserved, kind) = (card.reserved_bytes(), card.meter_kind());
    println!(
        "{}, {:?}, driver {}; libraries{}; held {:.1} MiB by {kind:?}, reserved {:.1} MiB",
        card.name(),
        card.arch(),
        card.driver_version(),
        card.libraries().arithmetic(),
        mib(card.held_bytes().unwrap()),
        mib(reserved)
    );
    let total = card.total_bytes();
    let busy = CudaDevice::new(card, total);
    assert!(matches!(busy, Err(CudaError::Busy { total_bytes, .. }) if total_bytes == total));
    let Err(none) = Card::open(77, card::options()) else { panic!("a 78th card") };
    assert!(matches!(none, CudaError::NoSuchDevice { index: 77, .. }), "{none}");
    for arena_bytes in [0, 1 << 20, (1 << 30) - 256, 8 << 30] {
        let begin = Instant::now();
        let Some(mut device) = card_device(arena_bytes) else { return };
        let opened = begin.elapsed();
        let begin = Instant::now();
        assert_eq!(device.high_water_bytes().unwrap(), 0);
        let scanned = begin.elapsed();
        let stream = Stream::new(&mut Random(12));
        if stream.arena_bytes() <= arena_bytes {
            let bytes = stream.run(&mut device, Source::Halves, &Control::default()).unwrap().1;
            assert!(bytes == stream.expected());
        }
        let taken = CudaDevice::taken_bytes(arena_bytes).unwrap();
        let held = device.card().held_bytes().unwrap();
        let most = device.card().reserved_bytes() + taken;
        println!(
            "arena {:.1} MiB: held {:.1} MiB, at most {:.1}; opened in {opened:.2?}, scanned in {scanned:.2?}",
            mib(arena_bytes),
            mib(held),
            mib(most)
        );
        assert!(held <= most);
    }
}
