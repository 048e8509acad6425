//! A program's ops as the compute lane issues them: everything looked up and every argument laid out beforehand,
//! so that a launch takes no memory; but for cuDNN, which is given the operands of each of its shapes at the first launch.

use std::ffi::c_void;
use std::ops::Range;

use plimsoll_cuda_kernels::{Arg, Backends, Launch, Task, tasks};
use plimsoll_device::{BoundOp, DeviceError, Mat, Program, cpu};
use plimsoll_graph::OpKind;

use crate::CudaError;
use crate::dnn::PreparedSdpa;
use crate::driver::{Address, Function, LaunchShape, Rows};
use crate::kernels::Kernels;
use crate::loader::Libraries;
use crate::lt::PreparedGemm;

/// Most parameters of a kernel.
pub(crate) const ARGUMENTS_MAX: usize = 64;

/// Places of transfers in the host buffer are multiples of this.
const TRANSFER_ALIGNMENT: u64 = 256;

/// One thing that the compute lane puts on its stream.
#[derive(Debug)]
pub(crate) enum Work {
    /// A kernel.
    Launch {
        /// It.
        function: Function,
        /// Its blocks.
        shape: LaunchShape,
        /// Its arguments, in [`Prepared::values`].
        values: Range<usize>,
    },
    /// A product of cuBLASLt.
    Gemm(PreparedGemm),
    /// Attention of cuDNN.
    Sdpa(PreparedSdpa),
    /// Host values to the arena.
    In(Transfer),
    /// The arena to host values.
    Out {
        /// Where from and to.
        transfer: Transfer,
        /// Index of the output.
        output: usize,
    },
}

/// Rows between the host buffer and the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    /// Byte offset in the host buffer, where the rows lie together.
    pub(crate) host: usize,
    /// Byte offset in the arena at step 0.
    pub(crate) arena: u64,
    /// Bytes that each step adds to it.
    pub(crate) step_bytes: u64,
    /// The rows.
    pub(crate) rows: Rows,
}

impl Transfer {
    /// Bytes of all rows.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.rows * self.rows.row_bytes
    }
}

/// A program's ops, ready to be issued.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    works: Vec<Work>,
    /// What each op does, in `works`.
    ops: Vec<Range<usize>>,
    /// All arguments: 8 bytes each, the value in the first bytes.
    values: Vec<u64>,
    /// Bytes of the host buffer that the program needs.
    pub(crate) host_bytes: usize,
}

/// Where the device's memory is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Address of the arena.
    pub(crate) base: Address,
    /// Its size.
    pub(crate) arena_bytes: u64,
    /// Address of the step counter.
    pub(crate) step_counter: Address,
}

impl Prepared {
    /// Prepares every op of a program that `check_program` has accepted.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for an op that no kernel computes, [`DeviceError::OutOfArena`] for a task that
    /// names memory outside of the arena, or what a library says.
    pub(crate) fn new(
        program: &Program<'_>,
        place: Place,
        kernels: &Kernels,
        libraries: &Libraries,
        backends: Backends,
    ) -> Result<Self, DeviceError> {
        let mut prepared = Self::default();
        for op in &program.ops {
            let start = prepared.works.len();
            prepared.transfer(op);
            let tasks = tasks(op, backends)
                .map_err(|error| CudaError::Unsupported { what: error.to_string() })?;
            for task in &tasks {
                prepared.task(op, task, place, kernels, libraries)?;
            }
            prepared.ops.push(start..prepared.works.len());
        }
        Ok(prepared)
    }

    /// What an op does, in order.
    pub(crate) fn works(&self, op: usize) -> &[Work] {
        &self.works[self.ops[op].clone()]
    }

    /// Pointers to a launch's arguments, as the driver takes them, at the front of `pointers`.
    pub(crate) fn arguments<'a>(
        &self,
        values: Range<usize>,
        pointers: &'a mut [*mut c_void; ARGUMENTS_MAX],
    ) -> &'a [*mut c_void] {
        let values = &self.values[values];
        for (pointer, value) in pointers.iter_mut().zip(values) {
            // The driver reads through it and does not write.
            *pointer = std::ptr::from_ref(value).cast_mut().cast();
        }
        &pointers[..values.len()]
    }

    /// Writes what the host has to give to the front of `buffer`, of [`Prepared::host_bytes`].
    ///
    /// # Errors
    /// [`DeviceError::RowOutOfTable`].
    pub(crate) fn fill_inputs(
        &self,
        program: &Program<'_>,
        buffer: &mut [u8],
    ) -> Result<(), DeviceError> {
        for (op, works) in program.ops.iter().zip(&self.ops) {
            let Some(Work::In(transfer)) = self.works[works.clone()].first() else { continue };
            let target = &mut buffer[transfer.host..transfer.host + transfer.bytes()];
            match &op.op.kind {
                OpKind::Input { input, .. } => {
                    target.copy_from_slice(program.inputs[input.index()])
                }
                OpKind::Gather { table, ids, out } => {
                    let (table, ids) =
                        (&program.tables[table.index()], program.inputs[ids.index()]);
                    cpu::gather_rows(table, ids, target, out.dtype)?;
                }
                _ => unreachable!("no other op brings host values"),
            }
        }
        Ok(())
    }

    /// Every output with its bytes in the host buffer.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.works.iter().filter_map(|work| match work {
            Work::Out { transfer, output } => {
                Some((*output, transfer.host..transfer.host + transfer.bytes()))
            }
            _ => None,
        })
    }

    fn transfer(&mut self, op: &BoundOp) {
        let work = match &op.op.kind {
            OpKind::Input { out, .. } | OpKind::Gather { out, .. } => Work::In(self.place(out)),
            OpKind::Output { output, x } => {
                Work::Out { transfer: self.place(x), output: output.index() }
            }
            _ => return,
        };
        self.works.push(work);
    }

    /// A place in the host buffer for a matrix.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "host values have that size, so it is a usize"
    )]
    fn place(&mut self, mat: &Mat) -> Transfer {
        let width = mat.dtype.bytes();
        let rows = Rows {
            rows: mat.rows as usize,
            row_bytes: (mat.cols * width) as usize,
            pitch_bytes: (mat.stride * width) as usize,
        };
        let host = self.host_bytes;
        let end = (host + rows.rows * rows.row_bytes) as u64;
        self.host_bytes = end.next_multiple_of(TRANSFER_ALIGNMENT) as usize;
        Transfer { host, arena: mat.offset, step_bytes: mat.step_bytes, rows }
    }

    fn task(
        &mut self,
        op: &BoundOp,
        task: &Task,
        place: Place,
        kernels: &Kernels,
        libraries: &Libraries,
    ) -> Result<(), DeviceError> {
        let missing = |library: &str| CudaError::Unsupported {
            what: format!("{} by {library}, which is not here,", op.op.name),
        };
        let work = match task {
            Task::Launch(launch) => {
                let launch = &kernels.arch().variant(launch.clone());
                let function = kernels.function(launch.kernel, launch.shared_bytes)?;
                let shape = LaunchShape {
                    grid: launch.grid,
                    block: launch.block,
                    shared_bytes: launch.shared_bytes,
                };
                let start = self.values.len();
                values_of(launch, place, &mut self.values).map_err(|what| {
                    let what = format!("{what} of {}", op.op.name);
                    DeviceError::OutOfArena { what, arena_bytes: place.arena_bytes }
                })?;
                Work::Launch { function, shape, values: start..self.values.len() }
            }
            Task::Gemm(gemm) => {
                let lt = libraries.lt.as_ref().ok_or_else(|| missing("cuBLASLt"))?;
                Work::Gemm(lt.prepare(gemm)?)
            }
            Task::Sdpa(sdpa) => {
                let dnn = libraries.dnn.as_ref().ok_or_else(|| missing("cuDNN"))?;
                Work::Sdpa(dnn.prepare(sdpa)?)
            }
        };
        self.works.push(work);
        Ok(())
    }
}

/// Appends a launch's arguments; says which one cannot be.
fn values_of(launch: &Launch, place: Place, values: &mut Vec<u64>) -> Result<(), String> {
    if launch.args.len() > ARGUMENTS_MAX {
        return Err(format!("{} arguments of {}", launch.args.len(), launch.kernel));
    }
    for (at, arg) in launch.args.iter().enumerate() {
        values.push(match arg {
            Arg::Arena(offset) if *offset < place.arena_bytes => place.base + offset,
            Arg::Arena(offset) => {
                return Err(format!("argument {at} of {}, byte {offset},", launch.kernel));
            }
            Arg::Step => place.step_counter,
            Arg::Null => 0,
            // Little-endian: the value is in the first bytes, which are all that the driver reads.
            Arg::U32(value) => u64::from(*value),
            Arg::U64(value) => *value,
            Arg::F32(value) => u64::from(value.to_bits()),
        });
    }
    Ok(())
}

/// Values narrower than 8 bytes lie at the start of theirs.
const _: () = assert!(cfg!(target_endian = "little"), "the CUDA device needs a little-endian host");

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

    use plimsoll_device::{HostDType, HostTable, OutputBuffer, Region};
    use plimsoll_graph::{DType, InputId, Op, OutputId, TableId};

    use super::*;

    const PLACE: Place = Place { base: 0x7000_0000_0000, arena_bytes: 4096, step_counter: 77 };

    fn launch(args: Vec<Arg>) -> Launch {
        Launch { kernel: "kernel", grid: [1; 3], block: [32, 1, 1], shared_bytes: 0, args }
    }

    #[test]
    fn arguments_are_laid_out_as_the_driver_reads_them() {
        let mut prepared = Prepared { values: vec![5], ..Prepared::default() };
        let all = launch(vec![
            Arg::Arena(256),
            Arg::Step,
            Arg::Null,
            Arg::U32(0xDEAD_BEEF),
            Arg::U64(1 << 40),
            Arg::F32(-1.5),
        ]);
        values_of(&all, PLACE, &mut prepared.values).unwrap();
        let mut pointers = [std::ptr::null_mut(); ARGUMENTS_MAX];
        let arguments = prepared.arguments(1..7, &mut pointers);
        assert_eq!(arguments.len(), 6);
        let bytes = |at: usize, count: usize| {
            // SAFETY: each argument is 8 bytes of `prepared`.
            unsafe { std::slice::from_raw_parts(arguments[at].cast::<u8>(), count) }
        };
        assert_eq!(bytes(0, 8), 0x7000_0000_0100u64.to_le_bytes());
        assert_eq!(bytes(1, 8), 77u64.to_le_bytes());
        assert_eq!(bytes(2, 8), [0; 8]);
        assert_eq!(bytes(3, 4), 0xDEAD_BEEFu32.to_le_bytes());
        assert_eq!(bytes(4, 8), (1u64 << 40).to_le_bytes());
        assert_eq!(bytes(5, 4), (-1.5f32).to_le_bytes());
    }

    #[test]
    fn an_argument_outside_of_the_arena_is_refused() {
        let mut values = Vec::new();
        assert!(values_of(&launch(vec![Arg::Arena(4095)]), PLACE, &mut values).is_ok());
        assert!(values_of(&launch(vec![Arg::Arena(4096)]), PLACE, &mut values).is_err());
        let many = launch(vec![Arg::Null; ARGUMENTS_MAX + 1]);
        assert!(values_of(&many, PLACE, &mut values).is_err());
    }

    #[test]
    fn host_values_lie_in_the_buffer_before_anything_runs() {
        let mat = |offset, rows, cols, stride, dtype| Mat {
            offset,
            rows,
            cols,
            stride,
            dtype,
            step_bytes: 0,
        };
        let table_bytes: Vec<u8> = (0..12u16).flat_map(|at| (at << 7).to_le_bytes()).collect();
        let ids: Vec<u8> = [3u32, 0].iter().flat_map(|id| id.to_le_bytes()).collect();
        let input: Vec<u8> = (0..24).collect();
        let gather = mat(0, 2, 3, 5, DType::F32);
        let kinds = [
            OpKind::Input { input: InputId(0), out: mat(512, 2, 3, 3, DType::F32) },
            OpKind::Gather { table: TableId(0), ids: InputId(1), out: gather },
            OpKind::Output { output: OutputId(0), x: mat(512, 2, 3, 4, DType::BF16) },
        ];
        let program = Program {
            ops: kinds
                .into_iter()
                .map(|kind| BoundOp {
                    op: Op { name: "op".to_owned(), kind },
                    workspace: Region::default(),
                })
                .collect(),
            inputs: vec![&input, &ids],
            tables: vec![HostTable {
                pieces: vec![&table_bytes],
                dtype: HostDType::BF16,
                rows: 4,
                cols: 3,
            }],
            outputs: vec![OutputBuffer { bytes: std::sync::Mutex::new(vec![0; 12].into()) }],
            ..Program::default()
        };
        let mut prepared = Prepared::default();
        for op in &program.ops {
            let start = prepared.works.len();
            prepared.transfer(op);
            prepared.ops.push(start..prepared.works.len());
        }
        assert_eq!(prepared.host_bytes, 3 * 256);
        let mut buffer = vec![0xAA; prepared.host_bytes];
        prepared.fill_inputs(&program, &mut buffer).unwrap();
        assert_eq!(buffer[..24], input);
        let rows: Vec<u8> =
            [9u32, 10, 11, 0, 1, 2].iter().flat_map(|at| (at << 23).to_le_bytes()).collect();
        assert_eq!(buffer[256..280], rows, "rows of a bf16 table as f32");
        assert_eq!(prepared.outputs().collect::<Vec<_>>(), vec![(0, 512..524)]);
        let Work::In(transfer) = &prepared.works(1)[0] else { panic!("no transfer") };
        assert_eq!(transfer.rows, Rows { rows: 2, row_bytes: 12, pitch_bytes: 20 });
    }
}
