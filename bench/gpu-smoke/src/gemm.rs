//! Part (b): cuBLASLt at FLUX's shapes with a pinned algorithm, and the rule of rows.
//!
//! For each (K, N, format, epilogue): every algorithm that the heuristic offers at M = 4608 without a K-split is timed, checked against a
//! reference in double precision, and run at smaller M on the first and on the last rows of the same input.
//! Those rows must be bit-equal to the same rows at M = 4608.
//! The fastest algorithm that passes is the one a plan would pin; its price at small M is its time over that of the heuristic's free choice there.

use crate::error::Result;
use crate::gpu::{Address, Arena, Argument, Gpu, Kernels, Stream, median, read_words};
use crate::library::{self, Libraries};
use crate::lt::{Call, Candidate, Config, Epilogue, Kind, Lt, Product, Side};

/// Rows of the reference: 4096 image and 512 text tokens.
const ROWS: u64 = 4608;
/// Other numbers of rows; 1 is a hoisted op, 77 a CLIP sequence, 512 the text stream, 1024 a 512x512 image, 4096 the image stream, 9216 two samples.
const OTHER_ROWS: [u64; 8] = [1, 77, 256, 512, 1024, 2048, 4096, ROWS_MAX];
/// Two samples in one product: a batch, or the two branches of guidance.
const ROWS_MAX: u64 = 2 * ROWS;
/// FLUX's linear layers (K, N) with what follows them.
const LAYERS: [(u64, u64, Epilogue); 7] = [
    (3072, 9216, Epilogue::Bias),
    (3072, 3072, Epilogue::Bias),
    (3072, 12288, Epilogue::Bias),
    (3072, 12288, Epilogue::GeluBias),
    (12288, 3072, Epilogue::Bias),
    (3072, 21504, Epilogue::Bias),
    (15360, 3072, Epilogue::Bias),
];
const KINDS: [Kind; 5] = [
    Kind::Bf16,
    Kind::Fp8Rows { fast: false },
    Kind::Fp8Rows { fast: true },
    Kind::Fp8Tensor { fast: false },
    Kind::Fp8Tensor { fast: true },
];
/// Cap on the workspace; what the algorithms really ask for is reported.
const WORKSPACE_BYTES: u64 = 32 << 20;
/// Copies of the weight through which timed calls rotate, so that small-M calls read it from HBM and not from the L2.
const WEIGHT_COPIES: u64 = 4;
const CANDIDATE_MAX: usize = 12;
const SAMPLES: u32 = 512;

struct Rig {
    lt: Lt,
    kernels: Kernels,
    stream: Stream,
    arena: Arena,
    /// What was pinned so far.
    pinned: Vec<(Kind, Config)>,
}

/// One layer in one format, with its operands on the device.
struct Case {
    kind: Kind,
    columns: u64,
    depth: u64,
    epilogue: Epilogue,
    side: Side,
    x: Address,
    weights: [Address; WEIGHT_COPIES as usize],
    reference: Address,
    out: Address,
    workspace: Address,
    unequal: Address,
}

/// What a candidate did at one other number of rows.
enum Rows {
    /// The library will not run it there.
    Refused(String),
    /// It ran; the count of 32-bit words that differ from the same rows at 4608, and the workspace it needed.
    Ran { unequal: u64, workspace_bytes: u64 },
}

/// Runs the part and prints its table.
pub(crate) fn run(libraries: &Libraries) -> Result<()> {
    let gpu = Gpu::start()?;
    libraries.blas_lt()?;
    let (lt, kernels, stream) = (Lt::new()?, Kernels::load()?, Stream::new()?);
    println!("cublasLt {} from {}", Lt::version(), library::mapped_paths("cublasLt"));
    let mut rig = Rig { lt, kernels, stream, arena: Arena::new(3 << 30)?, pinned: Vec::new() };
    println!("algorithm = id/tile/stages/split/reduction/swizzle/custom/inner/cluster");
    let mut table = vec![
        "| K x N | epilogue | format | ms at 4608 | TFLOP/s | workspace | algorithm | relative error | offered/refused somewhere/rows unequal/distinct results | us at M = 1, 77, 256, 512, 1024: pinned/fastest bit-equal/free choice | free choice bit-equal | ms with no workspace | rebuilt |".to_string(),
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|".to_string(),
    ];
    for (depth, columns, epilogue) in LAYERS {
        for kind in KINDS {
            let mark = rig.arena.mark();
            let row = rig.layer(kind, columns, depth, epilogue);
            match row {
                Ok(row) => table.push(row),
                Err(error) => table.push(format!(
                    "| {depth} x {columns} | {epilogue:?} | {} | {error} |",
                    kind.name()
                )),
            }
            gpu.synchronize()?;
            rig.arena.reset(mark);
        }
    }
    println!("{}", table.join("\n"));
    Ok(())
}

impl Rig {
    fn layer(
        &mut self,
        kind: Kind,
        columns: u64,
        depth: u64,
        epilogue: Epilogue,
    ) -> Result<String> {
        let case = self.prepare(kind, columns, depth, epilogue)?;
        let product = case.product(ROWS)?;
        let label = format!("{depth} x {columns} {epilogue:?} {}", kind.name());
        let candidates = self.offered(&case, &product, &label)?;
        let (mut refused, mut unequal, mut results) = (0, 0, Vec::new());
        let mut best: Option<(f64, f64, Candidate)> = None;
        for (rank, candidate) in candidates.iter().enumerate() {
            let error = self.reference(&case, &product, candidate)?;
            let milliseconds = self.time(&case, &product, candidate, ROWS)?;
            let result = self.checksum(case.reference, case.words(ROWS))?;
            if !results.contains(&result) {
                results.push(result);
            }
            let mut notes = Vec::new();
            let (mut is_refused, mut is_unequal) = (false, false);
            for rows in OTHER_ROWS {
                match self.rows(&case, candidate, rows)? {
                    Rows::Refused(status) => {
                        is_refused = true;
                        notes.push(format!("{rows}: {status}"));
                    }
                    Rows::Ran { unequal, workspace_bytes } => {
                        is_unequal |= unequal != 0;
                        notes.push(format!("{rows}: {unequal} unequal, ws {workspace_bytes}"));
                    }
                }
            }
            refused += usize::from(is_refused);
            unequal += usize::from(is_unequal);
            println!(
                "{label} #{rank} {} ws {} {milliseconds:.4} ms error {error:.1e} bits {result:016x} | {}",
                candidate.config,
                candidate.workspace_bytes,
                notes.join("; ")
            );
            let passes = !is_refused && !is_unequal && error < 0.01;
            if passes && best.as_ref().is_none_or(|(time, ..)| milliseconds < *time) {
                best = Some((milliseconds, error, *candidate));
            }
        }
        let offered = format!("{}/{refused}/{unequal}/{}", candidates.len(), results.len());
        let head = format!("| {depth} x {columns} | {epilogue:?} | {} |", kind.name());
        let Some((milliseconds, error, pinned)) = best else {
            return Ok(format!("{head} none keeps the rule | | | | | {offered} | | | | |"));
        };
        self.reference(&case, &product, &pinned)?;
        self.pinned.push((kind, pinned.config));
        let (times, equal) = self.price(&case, &pinned)?;
        let bare = self.without_workspace(&case, &product)?;
        let rebuilt = self.rebuilt(&case, &product, &pinned);
        let rate = 2.0 * (ROWS * columns * depth) as f64 / (milliseconds * 1e9);
        Ok(format!(
            "{head} {milliseconds:.4} | {rate:.0} | {} | {} | {error:.1e} | {offered} | {times} | {equal} | {bare} | {rebuilt} |",
            pinned.workspace_bytes, pinned.config
        ))
    }

    fn prepare(
        &mut self,
        kind: Kind,
        columns: u64,
        depth: u64,
        epilogue: Epilogue,
    ) -> Result<Case> {
        let operand = kind.element_bytes();
        let arena = &mut self.arena;
        let x = arena.take(ROWS_MAX * depth * operand)?;
        let mut weights = [0; WEIGHT_COPIES as usize];
        for weight in &mut weights {
            *weight = arena.take(columns * depth * operand)?;
        }
        let side = Side {
            bias: arena.take(columns * 2)?,
            x_scale: arena.take(ROWS_MAX * 4)?,
            w_scale: arena.take(columns * 4)?,
        };
        let case = Case {
            kind,
            columns,
            depth,
            epilogue,
            side,
            x,
            weights,
            reference: arena.take(ROWS * columns * 2)?,
            out: arena.take(ROWS_MAX * columns * 2)?,
            workspace: arena.take(WORKSPACE_BYTES)?,
            unequal: arena.take(8)?,
        };
        let fill = if kind == Kind::Bf16 { "fill_bf16" } else { "fill_e4m3" };
        // fp8 operands use most of e4m3's range and carry their size in the scales.
        let (x_size, w_size) = if kind == Kind::Bf16 { (1.0, 0.02) } else { (60.0, 60.0) };
        self.fill(fill, case.x, ROWS_MAX * depth, 1, x_size)?;
        for (copy, &weight) in case.weights.iter().enumerate() {
            self.fill(fill, weight, columns * depth, 2 + copy as u64, w_size)?;
        }
        self.fill("fill_bf16", side.bias, columns, 9, 0.5)?;
        self.fill("fill_scale", side.x_scale, ROWS_MAX, 10, 1.0 / 60.0)?;
        self.fill("fill_scale", side.w_scale, columns, 11, 0.02 / 60.0)?;
        Ok(case)
    }

    fn fill(
        &self,
        kernel: &'static str,
        target: Address,
        count: u64,
        seed: u64,
        size: f32,
    ) -> Result<()> {
        let arguments = [
            Argument::Word(target),
            Argument::Word(count),
            Argument::Word(seed),
            Argument::Float(size),
        ];
        self.kernels.launch(kernel, (1024, 256, 0), &arguments, self.stream)
    }

    /// Computes the reference rows over poisoned memory and returns their relative L2 error at sampled elements.
    fn reference(&mut self, case: &Case, product: &Product, candidate: &Candidate) -> Result<f64> {
        self.stream.fill(case.reference, 0xff, ROWS * case.columns * 2)?;
        self.lt.run(product, &candidate.algorithm, case.call(0, case.reference), self.stream)?;
        let mark = self.arena.mark();
        let pairs = self.arena.take(u64::from(SAMPLES) * 16)?;
        self.arena.reset(mark);
        let kind = match case.kind {
            Kind::Bf16 => 0,
            Kind::Fp8Rows { .. } => 1,
            Kind::Fp8Tensor { .. } => 2,
        };
        let words = [
            case.x,
            case.weights[0],
            case.side.bias,
            case.side.x_scale,
            case.side.w_scale,
            case.reference,
        ];
        let mut arguments: Vec<Argument> =
            words.into_iter().chain([ROWS, case.columns, case.depth]).map(Argument::Word).collect();
        arguments.push(Argument::Int(kind));
        arguments.push(Argument::Int(i32::from(case.epilogue == Epilogue::GeluBias)));
        arguments.push(Argument::Word(pairs));
        self.kernels.launch("gemm_sample", (SAMPLES, 128, 0), &arguments, self.stream)?;
        self.stream.synchronize()?;
        Ok(relative_error(&read_words(pairs, SAMPLES as usize * 2)?))
    }

    /// Runs a candidate on the first and on the last `rows` rows and counts differences from the reference.
    fn rows(&self, case: &Case, candidate: &Candidate, rows: u64) -> Result<Rows> {
        let product = case.product(rows)?;
        let workspace_bytes = match self.lt.check(&product, &candidate.algorithm) {
            Ok(bytes) => bytes,
            Err(error) => return Ok(Rows::Refused(error.to_string())),
        };
        if workspace_bytes > WORKSPACE_BYTES {
            return Ok(Rows::Refused(format!("workspace {workspace_bytes}")));
        }
        let mut unequal = 0;
        // The last rows begin at a multiple of 64, so that every address stays 256-aligned, as in a plan.
        for first in [0, ROWS.saturating_sub(rows) / 64 * 64] {
            // A scale per row belongs to its row: later rows need later scales.
            let product = case.product_at(rows, first)?;
            self.stream.fill(case.out, 0xff, rows * case.columns * 2)?;
            if let Err(error) =
                self.lt.run(&product, &candidate.algorithm, case.call(first, case.out), self.stream)
            {
                return Ok(Rows::Refused(format!("run: {error}")));
            }
            unequal += self.unequal(case, first, rows.min(ROWS))?;
        }
        Ok(Rows::Ran { unequal, workspace_bytes })
    }

    fn unequal(&self, case: &Case, first: u64, rows: u64) -> Result<u64> {
        self.stream.fill(case.unequal, 0, 8)?;
        let expected = case.reference + first * case.columns * 2;
        let arguments = [case.out, expected, case.words(rows), case.unequal].map(Argument::Word);
        self.kernels.launch("count_unequal", (1024, 256, 0), &arguments, self.stream)?;
        self.stream.synchronize()?;
        Ok(read_words(case.unequal, 1)?[0])
    }

    fn checksum(&mut self, source: Address, words: u64) -> Result<u64> {
        let mark = self.arena.mark();
        let sum = self.arena.take(8)?;
        self.arena.reset(mark);
        self.stream.fill(sum, 0, 8)?;
        self.kernels.launch(
            "checksum",
            (1024, 256, 0),
            &[source, words, sum].map(Argument::Word),
            self.stream,
        )?;
        self.stream.synchronize()?;
        Ok(read_words(sum, 1)?[0])
    }

    /// Milliseconds a call: graph replays of several calls that rotate through the weight copies.
    fn time(
        &self,
        case: &Case,
        product: &Product,
        candidate: &Candidate,
        rows: u64,
    ) -> Result<f64> {
        let calls = if rows >= 1024 { 8 } else { 24 };
        let graph = self.stream.capture(|| {
            for index in 0..calls {
                let mut call = case.call(0, case.out);
                call.w = case.weights[index % case.weights.len()];
                self.lt.run(product, &candidate.algorithm, call, self.stream)?;
            }
            Ok(())
        })?;
        graph.launch(self.stream)?;
        let replays = (0..5).map(|_| self.stream.time_ms(|| graph.launch(self.stream)));
        Ok(median(replays.collect::<Result<_>>()?) / calls as f64)
    }

    /// At each small M: microseconds of the pinned algorithm, of the fastest bit-equal one, and of the heuristic's free choice (splits allowed).
    fn price(&self, case: &Case, pinned: &Candidate) -> Result<(String, String)> {
        let (mut times, mut equal) = (Vec::new(), Vec::new());
        for rows in [1, 77, 256, 512, 1024] {
            let product = case.product(rows)?;
            let at_pinned = self.time(case, &product, pinned, rows)?;
            let mut kin = at_pinned;
            let others =
                self.lt.candidates(&product, WORKSPACE_BYTES, false, 8).unwrap_or_default();
            for other in &others {
                if self.is_equal(case, &product, other, rows)? {
                    kin = kin.min(self.time(case, &product, other, rows)?);
                } else {
                    equal.push(format!("{rows}: NO for {}", other.config));
                }
            }
            let free = match self.lt.candidates(&product, WORKSPACE_BYTES, true, 1) {
                Ok(offered) => offered.into_iter().next(),
                Err(error) => {
                    equal.push(format!("{rows}: {error}"));
                    None
                }
            };
            let Some(free) = free else {
                times.push(format!("{:.1}/{:.1}/-", at_pinned * 1e3, kin * 1e3));
                continue;
            };
            let at_free = self.time(case, &product, &free, rows)?;
            let is_equal = self.is_equal(case, &product, &free, rows)?;
            times.push(format!("{:.1}/{:.1}/{:.1}", at_pinned * 1e3, kin * 1e3, at_free * 1e3));
            let split = if free.config.split > 1 { " (split)" } else { "" };
            equal.push(format!("{rows}: {}{split}", if is_equal { "yes" } else { "no" }));
        }
        Ok((times.join(", "), equal.join(", ")))
    }

    fn is_equal(
        &self,
        case: &Case,
        product: &Product,
        candidate: &Candidate,
        rows: u64,
    ) -> Result<bool> {
        self.stream.fill(case.out, 0xff, rows * case.columns * 2)?;
        self.lt.run(product, &candidate.algorithm, case.call(0, case.out), self.stream)?;
        Ok(self.unequal(case, 0, rows)? == 0)
    }

    /// Milliseconds of the heuristic's choice where no workspace is given.
    fn without_workspace(&self, case: &Case, product: &Product) -> Result<String> {
        let offered = self.lt.candidates(product, 0, false, 1).unwrap_or_default();
        let Some(candidate) = offered.into_iter().next() else { return Ok("none".into()) };
        let milliseconds = self.time(case, product, &candidate, ROWS)?;
        Ok(format!("{milliseconds:.4} ({})", candidate.config))
    }

    /// What the heuristic offers without splits; where it offers nothing, what was pinned for the last layer of this format.
    fn offered(&self, case: &Case, product: &Product, label: &str) -> Result<Vec<Candidate>> {
        let refusal = match self.lt.candidates(product, WORKSPACE_BYTES, false, CANDIDATE_MAX) {
            Ok(candidates) if !candidates.is_empty() => return Ok(candidates),
            Ok(_) => "nothing without a split".to_string(),
            Err(error) => error.to_string(),
        };
        let with_splits = match self.lt.candidates(product, WORKSPACE_BYTES, true, 1) {
            Ok(candidates) => {
                candidates.iter().map(|candidate| candidate.config.to_string()).collect()
            }
            Err(error) => error.to_string(),
        };
        println!("{label}: heuristic {refusal}; with splits allowed: {with_splits}");
        let Some((_, config)) = self.pinned.iter().rev().find(|(kind, _)| *kind == case.kind)
        else {
            return Ok(Vec::new());
        };
        let algorithm = self.lt.rebuild(product, config)?;
        let workspace_bytes = self.lt.check(product, &algorithm)?;
        println!("{label}: {config}, pinned for another layer, is accepted");
        Ok(vec![Candidate { algorithm, workspace_bytes, config: *config }])
    }

    /// Whether the algorithm made from the configuration alone is accepted and gives the same bits.
    fn rebuilt(&self, case: &Case, product: &Product, pinned: &Candidate) -> String {
        let attempt = || -> Result<(bool, bool)> {
            let algorithm = self.lt.rebuild(product, &pinned.config)?;
            self.lt.check(product, &algorithm)?;
            self.stream.fill(case.out, 0xff, ROWS * case.columns * 2)?;
            self.lt.run(product, &algorithm, case.call(0, case.out), self.stream)?;
            Ok((self.unequal(case, 0, ROWS)? == 0, algorithm == pinned.algorithm))
        };
        match attempt() {
            Ok((bits, blob)) => format!("bits {}, blob {}", equal_or_not(bits), equal_or_not(blob)),
            Err(error) => error.to_string(),
        }
    }
}

impl Case {
    fn product(&self, rows: u64) -> Result<Product> {
        self.product_at(rows, 0)
    }

    fn product_at(&self, rows: u64, first: u64) -> Result<Product> {
        let mut side = self.side;
        if matches!(self.kind, Kind::Fp8Rows { .. }) {
            side.x_scale += first * 4;
        }
        Lt::product(self.kind, (rows, self.columns, self.depth), self.epilogue, side)
    }

    fn call(&self, first: u64, out: Address) -> Call {
        Call {
            x: self.x + first * self.depth * self.kind.element_bytes(),
            w: self.weights[0],
            out,
            workspace: self.workspace,
            workspace_bytes: WORKSPACE_BYTES,
        }
    }

    fn words(&self, rows: u64) -> u64 {
        rows * self.columns / 2
    }
}

fn equal_or_not(equal: bool) -> &'static str {
    if equal { "equal" } else { "differ" }
}

/// `|found - reference| / |reference|` over (reference, found) pairs of doubles.
pub(crate) fn relative_error(pairs: &[u64]) -> f64 {
    let (mut difference, mut size) = (0.0, 0.0);
    for pair in pairs.chunks_exact(2) {
        let (reference, found) = (f64::from_bits(pair[0]), f64::from_bits(pair[1]));
        difference += (found - reference).powi(2);
        size += reference.powi(2);
    }
    (difference / size).sqrt()
}
