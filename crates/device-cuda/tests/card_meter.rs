//! The card's memory, read beside a run: before a context is there, while it is, and after it has gone.
//!
//! Run the test's binary on a machine with a card: `card_meter-HASH --ignored --nocapture`.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod card;

use plimsoll_device::Meter;
use plimsoll_device_cuda::{CardMeter, CudaDevice};

#[test]
#[ignore = "needs a card"]
fn the_meter_sees_a_context_and_an_arena_come_and_go() {
    const ARENA: u64 = 1 << 30;
    let meter = CardMeter::open(0).unwrap();
    let before = meter.read();
    println!("before  {before:?}");
    for round in 0..2 {
        let Some(opened) = card::open(card::options()) else { return };
        let held = opened.held_bytes().unwrap();
        let context = meter.read();
        println!("context {context:?}, {held} by the card itself");
        let device = CudaDevice::new(opened, ARENA).unwrap();
        let arena = meter.read();
        println!("arena   {arena:?}");
        drop(device);
        let after = meter.read();
        println!("after   {after:?}");
        // Without NVML there is no figure at all, which doctor says.
        let Some(nothing) = before.process_bytes else { return };
        assert_eq!(nothing, 0);
        // The arena has gone. The context stays where a library's runtime holds it as well, as cuDNN's does.
        assert!(after.process_bytes.unwrap() <= held, "round {round}");
        assert_eq!(context.process_bytes, Some(held));
        let taken = arena.process_bytes.unwrap() - held;
        assert_eq!(Some(taken), CudaDevice::taken_bytes(ARENA));
        assert!(arena.device_bytes.unwrap() >= arena.process_bytes.unwrap());
    }
}
