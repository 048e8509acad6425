//! Streamed sums: programs of random sizes whose result the host knows.

use std::io::Write;
use std::sync::Mutex;

use crate::common::{Random, bound, unit};
use half::f16;
use plimsoll_device::{
    Command, Control, Device, DeviceError, HostDType, Lane, Mat, OutputBuffer, Program, Queue,
    Region, RunStats, Segment,
};
use plimsoll_device_cuda::CudaDevice;
use plimsoll_graph::{DType, OpKind, OutputId};
use plimsoll_host::{DiskFiles, SharedMapping};

pub(crate) fn mat(offset: u64, rows: u64, cols: u64, dtype: DType) -> Mat {
    Mat { offset, rows, cols, stride: cols, dtype, step_bytes: 0 }
}

/// Where a stream's weights lie on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// In ordinary memory, of the arena's type: through windows, as bytes.
    Memory,
    /// In a mapped file: lent to the card.
    Mapped,
    /// In a mapped file that is in no list of mappings: through windows.
    Unlisted,
    /// In a file that is read from the disk: through windows.
    Disk,
    /// As halves: through windows, cast.
    Halves,
}

pub(crate) const SOURCES: [Source; 5] =
    [Source::Memory, Source::Mapped, Source::Unlisted, Source::Disk, Source::Halves];

/// Layers `x += repeat * w[layer]`, whose weights are streamed through some slots for some steps. Values are small
/// integers, so that sums are exact and the host knows the result.
pub(crate) struct Stream {
    pub(crate) layers: usize,
    pub(crate) steps: u32,
    pub(crate) slots: usize,
    pub(crate) elements: usize,
    pub(crate) repeat: u32,
    /// A copy is cut into this many segments.
    segments: usize,
    values: Vec<Vec<f32>>,
    halves: Vec<Vec<u8>>,
    words: Vec<Vec<u8>>,
    zeros: Vec<u8>,
    mapping: SharedMapping,
    disk: DiskFiles,
    file: tempfile::NamedTempFile,
}

/// Bytes before the weights in the file: an odd place, as files have.
const HEADER: usize = 4 * 777;

impl Stream {
    pub(crate) fn new(random: &mut Random) -> Self {
        let layers = 1 + random.below(7) as usize;
        let elements = 1 << (8 + random.below(14));
        let mut stream = Self::of(layers, elements, |_| random.below(9) as f32 - 4.0);
        stream.steps = 1 + random.below(6) as u32;
        stream.slots = 1 + random.below(3) as usize;
        stream.repeat = 1 + random.below(12) as u32;
        stream.segments = 1 + random.below(5) as usize;
        stream
    }

    /// Layers of given values, streamed once through two slots, each copy in one segment.
    pub(crate) fn of(layers: usize, elements: usize, mut value: impl FnMut(usize) -> f32) -> Self {
        let values: Vec<Vec<f32>> =
            (0..layers).map(|_| (0..elements).map(&mut value).collect()).collect();
        let words: Vec<Vec<u8>> = values
            .iter()
            .map(|layer| layer.iter().flat_map(|value| value.to_le_bytes()).collect())
            .collect();
        let halves = values
            .iter()
            .map(|layer| layer.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect())
            .collect();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; HEADER]).unwrap();
        words.iter().for_each(|layer| file.write_all(layer).unwrap());
        file.flush().unwrap();
        let mapping = SharedMapping::open(file.path()).unwrap();
        Self {
            layers,
            steps: 1,
            slots: 2,
            elements,
            repeat: 1,
            segments: 1,
            values,
            halves,
            words,
            zeros: vec![0; elements * 4],
            disk: DiskFiles::open(std::slice::from_ref(&mapping)).unwrap(),
            mapping,
            file,
        }
    }

    /// Leaves that many bytes of the file.
    pub(crate) fn shrink(&self, bytes: u64) {
        self.file.as_file().set_len(bytes).unwrap();
    }

    /// One that takes a few milliseconds.
    pub(crate) fn long(random: &mut Random) -> Self {
        loop {
            let stream = Self::new(random);
            if stream.elements >= 1 << 19 && stream.layers >= 4 && stream.steps >= 4 {
                return stream;
            }
        }
    }

    pub(crate) fn total(&self) -> usize {
        self.layers * self.steps as usize
    }

    pub(crate) fn slot_bytes(&self) -> u64 {
        self.elements as u64 * 4
    }

    pub(crate) fn arena_bytes(&self) -> u64 {
        (self.slots as u64 + 1) * self.slot_bytes()
    }

    pub(crate) fn x(&self) -> Mat {
        mat(self.slots as u64 * self.slot_bytes(), 1, self.elements as u64, DType::F32)
    }

    pub(crate) fn slot(&self, at: usize) -> u64 {
        (at % self.slots) as u64 * self.slot_bytes()
    }

    pub(crate) fn copy(&self, at: usize, source: Source) -> plimsoll_device::BoundCopy<'_> {
        let layer = at % self.layers;
        let bytes: &[u8] = match source {
            Source::Memory => &self.words[layer],
            Source::Halves => &self.halves[layer],
            Source::Mapped | Source::Unlisted | Source::Disk => {
                let start = HEADER + layer * self.elements * 4;
                &self.mapping.bytes()[start..start + self.elements * 4]
            }
        };
        let source_dtype = if source == Source::Halves { HostDType::F16 } else { HostDType::F32 };
        let width = source_dtype.bytes() as usize;
        let each = self.elements.div_ceil(self.segments) * width;
        let mut copy = unit(Segment {
            source: bytes,
            source_dtype,
            target: self.slot(at),
            target_dtype: DType::F32,
        });
        copy.from_disk = source == Source::Disk;
        let mut target = self.slot(at);
        copy.segments = bytes
            .chunks(each)
            .map(|source| {
                let segment = Segment { source, source_dtype, target, target_dtype: DType::F32 };
                target += (source.len() / width * 4) as u64;
                segment
            })
            .collect();
        copy
    }

    pub(crate) fn program(&self, source: Source, trace: bool) -> Program<'_> {
        let x = self.x();
        let total = self.total();
        let start = Segment {
            source: &self.zeros,
            source_dtype: HostDType::F32,
            target: x.offset,
            target_dtype: DType::F32,
        };
        let copies = (0..total).map(|at| self.copy(at, source)).chain([unit(start)]).collect();
        let add = |at: usize| OpKind::AddWeight {
            a: x,
            weight: mat(self.slot(at), 1, self.elements as u64, DType::F32),
            out: x,
        };
        let mut ops: Vec<_> = (0..total).map(|at| bound(add(at), Region::default())).collect();
        ops.push(bound(OpKind::Output { output: OutputId(0), x }, Region::default()));
        Program {
            ops,
            copies,
            disk: Some(&self.disk),
            outputs: vec![OutputBuffer { bytes: Mutex::new(vec![0; self.elements * 4].into()) }],
            steps: self.steps,
            mark_count: self.steps + 1,
            trace,
            command_count: total as u64 * (1 + u64::from(self.repeat)) + 2,
            ..Program::default()
        }
    }

    pub(crate) fn drive(&self, queue: &dyn Queue) -> Result<(), DeviceError> {
        let total = self.total() as u32;
        queue.enqueue(Lane::Copy, Command::Copy { copy: total, step: None })?;
        for at in 0..total {
            let step = at / self.layers as u32;
            if at % self.layers as u32 == 0 {
                queue.enqueue(Lane::Compute, Command::Mark(step))?;
            }
            if let Some(count) = (at + 1).checked_sub(self.slots as u32).filter(|count| *count > 0)
            {
                // The slot's last reader is done.
                let count = u64::from(count);
                queue.enqueue(Lane::Copy, Command::Wait { lane: Lane::Compute, count })?;
            }
            queue.enqueue(Lane::Copy, Command::Copy { copy: at, step: Some(step) })?;
            queue.enqueue(Lane::Copy, Command::Signal)?;
            let wait = Command::Wait { lane: Lane::Copy, count: u64::from(at) + 1 };
            queue.enqueue(Lane::Compute, wait)?;
            for _ in 0..self.repeat {
                queue.enqueue(Lane::Compute, Command::Run { op: at, step })?;
            }
            queue.enqueue(Lane::Compute, Command::Signal)?;
            if at >= 8 {
                queue.wait(Lane::Compute, u64::from(at) - 7)?;
            }
        }
        queue.enqueue(Lane::Compute, Command::Run { op: total, step: 0 })?;
        queue.enqueue(Lane::Compute, Command::Mark(self.steps))
    }

    pub(crate) fn run(
        &self,
        device: &mut CudaDevice,
        source: Source,
        control: &Control,
    ) -> Result<(RunStats, Vec<u8>), DeviceError> {
        let program = self.program(source, false);
        let stats = device.run(&program, control, &mut |queue| self.drive(queue))?;
        let bytes = program.outputs[0].bytes.lock().unwrap().to_vec();
        Ok((stats, bytes))
    }

    pub(crate) fn expected(&self) -> Vec<u8> {
        let times = (self.steps * self.repeat) as f32;
        let sum = |at: usize| self.values.iter().map(|layer| layer[at]).sum::<f32>() * times;
        (0..self.elements).flat_map(|at| sum(at).to_le_bytes()).collect()
    }

    pub(crate) fn list(&self, device: &mut CudaDevice, source: Source) {
        let all = std::slice::from_ref(&self.mapping);
        device.set_mappings(if source == Source::Mapped { all } else { &[] });
    }
}
