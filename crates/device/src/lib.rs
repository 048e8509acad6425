//! The contract that a device fulfils, and two devices: `cpu` (reference arithmetic) and `sim` (virtual
//! clock, seeded faults).
//!
//! - A device owns one arena, taken once; every address in a [`Program`] is an offset into it.
//! - There are two lanes, copy and compute. Each carries out its commands in order; the lanes meet only
//!   where one waits for a count of the other's signals ([`Command::Wait`]), so that an event is a number
//!   that never has to be reset, and a device with a fixed pool of events can reuse them.
//! - The caller issues commands in an order in which every signal precedes the waits for it.
//! - A device has no allocator: between the first command and the last it takes no memory outside its arena
//!   but the scratch that its GEMM library keeps, which it reports.
//! - Who validates: `verify` has proved the plan. A device checks what it would corrupt memory by (ranges
//!   inside the arena) when a program is loaded, and nothing while it runs.

mod contract;
pub mod cpu;
mod meter;
mod shortage;
pub mod sim;

pub use plimsoll_plan::Region;

pub use contract::{
    BoundCopy, BoundOp, Command, Control, Device, DeviceError, HostDType, HostRows, HostTable,
    Lane, Mat, OutputBuffer, Program, Queue, RunStats, Segment, Span, SpanKind, WideDType,
    is_plain,
};
pub use meter::{Meter, Reading};
pub use shortage::{Memory, Shortage};
