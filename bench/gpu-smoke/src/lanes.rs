//! Two lanes over a ring of slots: the copies and products of a step, put on two streams or captured as a graph.
//!
//! The copy lane runs `slots - 1` blocks ahead and wraps over the end of the step, as the design has it.
//! Two events a slot (`full`, `free`) order the lanes; in a capture they become edges between nodes.
//! Every product's output is summed and compared with a run without overlap, so that a missing edge is counted and not only timed.

use std::time::Instant;

use crate::error::Result;
use crate::file::Mapping;
use crate::gpu::{
    Address, Arena, Argument, Event, Graph, Kernels, Stream, median, mib, read_words, write_words,
};
use crate::lt::{Call, Candidate, Epilogue, Kind, Lt, Product, Side};

/// Blocks of FLUX's transformer.
pub(crate) const BLOCKS: u64 = 57;
const ROWS: u64 = 4608;
const DEPTH: u64 = 3072;
const STAMPS: u64 = 4096;
const WORKSPACE_BYTES: u64 = 4 << 20;

/// What one graph holds and how it is cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Slots of the ring.
    pub(crate) slots: u64,
    /// Each block keeps its slot in every step; otherwise the ring runs on and the slots move from step to step.
    pub(crate) fixed: bool,
    /// Products a block; more of them make the step compute-bound.
    pub(crate) products: u64,
    /// Copies a block, as an unpacked file would need.
    pub(crate) cuts: u64,
    /// Graphs a step.
    pub(crate) graphs: u64,
    /// Whether blocks are copied at all.
    pub(crate) copies: bool,
    /// Whether copies wait for `free`; false plants the fault that the sums must find.
    pub(crate) waits: bool,
    /// Whether products are summed and compared.
    pub(crate) checks: bool,
}

impl Shape {
    /// The plain case: two slots, one product and one copy a block, one graph a step.
    pub(crate) const PLAIN: Self = Self {
        slots: 2,
        fixed: true,
        products: 1,
        cuts: 1,
        graphs: 1,
        copies: true,
        waits: true,
        checks: true,
    };
}

/// Everything that a step needs, on both sides of the link.
pub(crate) struct Rig {
    lt: Lt,
    kernels: Kernels,
    compute: Stream,
    copy: Stream,
    mapping: Mapping,
    /// Bytes of one block.
    pub(crate) block_bytes: u64,
    windows: u64,
    slots: Vec<(Address, Event, Event)>,
    product: Product,
    algorithm: Candidate,
    x: Address,
    out: Address,
    workspace: Address,
    sums: Address,
    expected: Address,
    wrong: Address,
    times: Address,
    cursor: Address,
}

/// Figures of one variant.
pub(crate) struct Outcome {
    /// Each step, from its first stamp to its last.
    pub(crate) step_ms: Vec<f64>,
    /// From the last stamp of a graph to the first of the next.
    pub(crate) gap_us: Vec<f64>,
    /// All steps, by events around them.
    pub(crate) total_ms: f64,
    /// How long the host was inside each launch call.
    pub(crate) launch_ms: Vec<f64>,
    /// Blocks whose product differs from a run without overlap.
    pub(crate) wrong: u64,
    /// Nodes of all the graphs.
    pub(crate) nodes: usize,
    /// Edges of all the graphs.
    pub(crate) edges: usize,
}

impl Rig {
    /// Sets up `slots` slots of `block_bytes` over a file; where it is smaller than the step, blocks share its windows.
    pub(crate) fn new(mapping: Mapping, block_bytes: u64, slots: u64) -> Result<Self> {
        let columns = block_bytes / 2 / DEPTH;
        let out_bytes = ROWS * columns * 2;
        let words = STAMPS + 3 * BLOCKS + 16;
        let mut arena = Arena::new(
            slots * block_bytes
                + out_bytes
                + ROWS * DEPTH * 2
                + WORKSPACE_BYTES
                + words * 8
                + (1 << 16),
        )?;
        let (lt, kernels) = (Lt::new()?, Kernels::load()?);
        let slots = (0..slots)
            .map(|_| Ok((arena.take(block_bytes)?, Event::new()?, Event::new()?)))
            .collect::<Result<_>>()?;
        let product =
            Lt::product(Kind::Bf16, (ROWS, columns, DEPTH), Epilogue::None, Side::default())?;
        let offered = lt.candidates(&product, WORKSPACE_BYTES, false, 1)?;
        let Some(&algorithm) = offered.first() else {
            unreachable!("cuBLASLt has an algorithm for every bf16 product")
        };
        let windows = (mapping.bytes / block_bytes).min(BLOCKS);
        let rig = Self {
            lt,
            kernels,
            compute: Stream::new()?,
            copy: Stream::new()?,
            mapping,
            block_bytes,
            windows,
            slots,
            product,
            algorithm,
            x: arena.take(ROWS * DEPTH * 2)?,
            out: arena.take(out_bytes)?,
            workspace: arena.take(WORKSPACE_BYTES)?,
            sums: arena.take(BLOCKS * 8)?,
            expected: arena.take(BLOCKS * 8)?,
            wrong: arena.take(8)?,
            times: arena.take(STAMPS * 8)?,
            cursor: arena.take(8)?,
        };
        let fill = [
            Argument::Word(rig.x),
            Argument::Word(ROWS * DEPTH),
            Argument::Word(5),
            Argument::Float(1.0),
        ];
        rig.kernels.launch("fill_bf16", (1024, 256, 0), &fill, rig.compute)?;
        rig.expect()?;
        Ok(rig)
    }

    /// The sums that a run without overlap gives.
    fn expect(&self) -> Result<()> {
        self.compute.fill(self.sums, 0, BLOCKS * 8)?;
        for block in 0..BLOCKS {
            self.copy_block(block, 0, 1, self.compute)?;
            self.multiply(0, self.compute)?;
            self.sum(block, self.compute)?;
        }
        self.compute.synchronize()?;
        write_words(self.expected, &read_words(self.sums, BLOCKS as usize)?)?;
        self.compute.fill(self.sums, 0, BLOCKS * 8)?;
        self.compute.synchronize()
    }

    fn window(&self, block: u64) -> u64 {
        block % self.windows * self.block_bytes
    }

    fn copy_block(&self, block: u64, slot: u64, cuts: u64, stream: Stream) -> Result<()> {
        let piece = self.block_bytes / cuts;
        let target = self.slots[slot as usize].0;
        (0..cuts).try_for_each(|cut| {
            stream.copy_in(
                target + cut * piece,
                self.mapping.at(self.window(block) + cut * piece),
                piece,
            )
        })
    }

    fn multiply(&self, slot: u64, stream: Stream) -> Result<()> {
        let call = Call {
            x: self.x,
            w: self.slots[slot as usize].0,
            out: self.out,
            workspace: self.workspace,
            workspace_bytes: WORKSPACE_BYTES,
        };
        self.lt.run(&self.product, &self.algorithm.algorithm, call, stream)
    }

    fn sum(&self, block: u64, stream: Stream) -> Result<()> {
        let words = ROWS * (self.block_bytes / 2 / DEPTH) / 2;
        let arguments = [self.out, words, self.sums + block * 8].map(Argument::Word);
        self.kernels.launch("checksum", (1056, 256, 0), &arguments, stream)
    }

    fn settle(&self, block: u64, stream: Stream) -> Result<()> {
        let arguments =
            [self.sums + block * 8, self.expected + block * 8, self.wrong].map(Argument::Word);
        self.kernels.launch("settle", (1, 1, 0), &arguments, stream)
    }

    fn stamp(&self, stream: Stream) -> Result<()> {
        self.kernels.launch(
            "stamp",
            (1, 1, 0),
            &[self.times, self.cursor, STAMPS].map(Argument::Word),
            stream,
        )
    }

    /// The slot of the `visit`-th block since the start.
    fn slot(shape: Shape, visit: u64) -> u64 {
        (if shape.fixed { visit % BLOCKS } else { visit }) % shape.slots
    }

    /// Enqueues visits `from..to` and the copies for the visits that lie `slots - 1` further on, which wrap into the next step.
    fn enqueue(&self, shape: Shape, from: u64, to: u64) -> Result<()> {
        let ahead = shape.slots - 1;
        for visit in from..to {
            let (_, full, free) = self.slots[Self::slot(shape, visit) as usize];
            if shape.copies && visit >= from + ahead {
                self.compute.wait(full)?;
            }
            for _ in 0..shape.products {
                self.multiply(Self::slot(shape, visit), self.compute)?;
            }
            if shape.checks {
                self.sum(visit % BLOCKS, self.compute)?;
                self.settle(visit % BLOCKS, self.compute)?;
            }
            free.record(self.compute)?;
            if shape.copies {
                let next = visit + ahead;
                let target = Self::slot(shape, next);
                let (_, full, free) = self.slots[target as usize];
                // A slot last read before this graph is free already: the graph begins after that one has ended.
                let read_here = (from..=visit).any(|reader| Self::slot(shape, reader) == target);
                if shape.waits && read_here {
                    self.copy.wait(free)?;
                }
                self.copy_block(next % BLOCKS, target, shape.cuts, self.copy)?;
                full.record(self.copy)?;
            }
        }
        Ok(())
    }

    /// Captures one stretch of a step, with a stamp of the clock at either end.
    pub(crate) fn capture(&self, shape: Shape, from: u64, to: u64) -> Result<Graph> {
        self.compute.capture(|| {
            self.stamp(self.compute)?;
            let fork = Event::new()?;
            fork.record(self.compute)?;
            self.copy.wait(fork)?;
            self.enqueue(shape, from, to)?;
            let join = Event::new()?;
            join.record(self.copy)?;
            self.compute.wait(join)?;
            self.stamp(self.compute)
        })
    }

    /// Undoes the registration of the mapping; must come before the rig ends.
    pub(crate) fn unregister(&self, piece_bytes: u64) -> Result<f64> {
        self.mapping.unregister(piece_bytes)
    }

    /// Distinct windows of the file, and the algorithm of the products.
    pub(crate) fn setting(&self) -> String {
        format!(
            "{BLOCKS} blocks of {:.1} MiB in {} distinct windows, product algorithm {}",
            mib(self.block_bytes),
            self.windows,
            self.algorithm.config
        )
    }

    /// The compute lane.
    pub(crate) fn stream(&self) -> Stream {
        self.compute
    }

    /// Puts the first blocks into their slots, as the program before the steady step would.
    pub(crate) fn fill_slots(&self, shape: Shape) -> Result<()> {
        for visit in 0..shape.slots.max(2) - 1 {
            self.copy_block(visit, Self::slot(shape, visit), 1, self.copy)?;
        }
        self.copy.synchronize()?;
        for address in [self.wrong, self.cursor] {
            write_words(address, &[0])?;
        }
        Ok(())
    }

    /// Replays `steps` steps of a shape.
    pub(crate) fn replay(&self, shape: Shape, steps: u64) -> Result<Outcome> {
        // Where slots move from step to step, as many graphs are needed as it takes to come round.
        let period =
            if shape.fixed || BLOCKS.is_multiple_of(shape.slots) { 1 } else { shape.slots };
        let cut = BLOCKS.div_ceil(shape.graphs);
        let mut graphs = Vec::new();
        for step in 0..period {
            for part in 0..shape.graphs {
                let (from, to) = (part * cut, ((part + 1) * cut).min(BLOCKS));
                graphs.push(self.capture(shape, step * BLOCKS + from, step * BLOCKS + to)?);
            }
        }
        self.fill_slots(shape)?;
        graphs.iter().try_for_each(|graph| graph.upload(self.compute))?;
        self.compute.synchronize()?;
        let mut launch_ms = Vec::new();
        let total_ms = self.compute.time_ms(|| {
            (0..steps * shape.graphs).try_for_each(|launch| {
                let begin = Instant::now();
                graphs[launch as usize % graphs.len()].launch(self.compute)?;
                launch_ms.push(begin.elapsed().as_secs_f64() * 1e3);
                Ok(())
            })
        })?;
        self.compute.synchronize()?;
        let stamps = read_words(self.times, (2 * steps * shape.graphs) as usize)?;
        let span = |from: usize, to: usize| stamps[to].wrapping_sub(stamps[from]) as f64;
        let per_step = 2 * shape.graphs as usize;
        let step_ms = (0..steps as usize)
            .map(|step| span(step * per_step, step * per_step + per_step - 1) / 1e6)
            .collect();
        let gap_us =
            (1..stamps.len() / 2).map(|launch| span(2 * launch - 1, 2 * launch) / 1e3).collect();
        Ok(Outcome {
            step_ms,
            gap_us,
            total_ms,
            launch_ms,
            wrong: read_words(self.wrong, 1)?[0],
            nodes: graphs.iter().map(|graph| graph.node_count).sum(),
            edges: graphs.iter().map(|graph| graph.edge_count).sum(),
        })
    }

    /// The same steps put on the two streams directly: no graph, no seam.
    pub(crate) fn without_graph(&self, shape: Shape, steps: u64) -> Result<(f64, f64, u64)> {
        self.fill_slots(shape)?;
        let begin = Instant::now();
        let mut host_us = 0.0;
        let total_ms = self.compute.time_ms(|| {
            self.enqueue(shape, 0, steps * BLOCKS)?;
            host_us = begin.elapsed().as_secs_f64() * 1e6 / steps as f64;
            Ok(())
        })?;
        self.copy.synchronize()?;
        Ok((total_ms / steps as f64, host_us, read_words(self.wrong, 1)?[0]))
    }

    /// GB/s of the bare copy lane: the step's copies and nothing else.
    pub(crate) fn bare_link(&self) -> Result<f64> {
        let times = (0..3).map(|_| {
            self.copy.time_ms(|| {
                (0..BLOCKS).try_for_each(|block| self.copy_block(block, block % 2, 1, self.copy))
            })
        });
        Ok(self.step_bytes() / (median(times.collect::<Result<_>>()?) * 1e6))
    }

    /// Bytes that a step copies.
    pub(crate) fn step_bytes(&self) -> f64 {
        (BLOCKS * self.block_bytes) as f64
    }

    /// One copy over the boundary of two registrations.
    pub(crate) fn boundary(&self, boundary: u64) -> String {
        let half = self.block_bytes / 2;
        let target = self.slots[0].0;
        let attempt = || {
            self.copy.time_ms(|| {
                self.copy.copy_in(target, self.mapping.at(boundary - half), self.block_bytes)
            })
        };
        match attempt().and_then(|_| attempt()) {
            Ok(milliseconds) => {
                format!("works, {:.1} GB/s", self.block_bytes as f64 / (milliseconds * 1e6))
            }
            Err(error) => format!("refused: {error}"),
        }
    }
}
