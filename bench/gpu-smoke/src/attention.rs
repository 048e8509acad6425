//! Part (e): an attention plan of cuDNN built from Rust, two ways.
//!
//! `Unified` is one node, `CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR` (cuDNN 9.13.1 and later).
//! `Pattern` is the older way: product, scale, softmax in five operations, product; cuDNN recognises it and runs a fused kernel.
//! Each plan is timed and checked against a reference in double precision.
//! The rule of rows is tested on queries (512 of 4608) and on a batch of two.

use cudarc::cudnn::sys;
use cudarc::cudnn::sys::cudnnBackendAttributeName_t as Name;
use cudarc::cudnn::sys::cudnnBackendAttributeType_t as Type;
use cudarc::cudnn::sys::cudnnBackendDescriptorType_t as Descriptor;

use crate::dnn::{Dnn, Node, Plan};
use crate::error::Result;
use crate::gemm::relative_error;
use crate::gpu::{Address, Arena, Argument, Gpu, Kernels, Stream, median, read_words};
use crate::library::{self, Libraries};

const HEADS: i64 = 24;
const LENGTH: i64 = 4608;
const WIDTH: i64 = 128;
const SAMPLES: u32 = 64;
const WORKSPACE_BYTES: u64 = 64 << 20;
const SCALE: f32 = 0.088_388_35; // 1 / sqrt(128)
// Unique ids of the tensors in an operation graph.
const Q: i64 = 1;
const K: i64 = 2;
const V: i64 = 3;
const OUT: i64 = 4;
const FACTOR: i64 = 5;

/// How the attention is described to cuDNN.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    /// One node.
    Unified,
    /// Products, pointwise operations and reductions.
    Pattern,
}

/// One attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    batch: i64,
    queries: i64,
    /// Tokens outermost, (length, heads, width), as a QKV projection leaves them; otherwise (heads, length, width).
    tokens_first: bool,
}

impl Shape {
    /// One sample, all queries, heads first.
    pub(crate) const PLAIN: Self = Self { batch: 1, queries: LENGTH, tokens_first: false };

    fn strides(self) -> [i64; 4] {
        let sample = HEADS * LENGTH * WIDTH;
        if self.tokens_first {
            [sample, WIDTH, HEADS * WIDTH, 1]
        } else {
            [sample, LENGTH * WIDTH, WIDTH, 1]
        }
    }
}

/// Operands of an attention on the device.
pub(crate) struct Operands {
    q: Address,
    k: Address,
    v: Address,
    out: Address,
    other: Address,
    workspace: Address,
    unequal: Address,
    pairs: Address,
}

/// Bytes that `Operands::take` needs.
pub(crate) const OPERAND_BYTES: u64 =
    5 * sample_bytes() * 2 + WORKSPACE_BYTES + SAMPLES as u64 * 128 * 16 + 4096;

const fn sample_bytes() -> u64 {
    (HEADS * LENGTH * WIDTH * 2) as u64
}

impl Operands {
    /// Places and fills the operands of a batch of two.
    pub(crate) fn take(arena: &mut Arena, kernels: &Kernels, stream: Stream) -> Result<Self> {
        let [q, k, v, out, other] = {
            let mut places = [0; 5];
            for place in &mut places {
                *place = arena.take(2 * sample_bytes())?;
            }
            places
        };
        for (seed, target) in (20..).zip([q, k, v]) {
            let arguments = [
                Argument::Word(target),
                Argument::Word(sample_bytes()),
                Argument::Word(seed),
                Argument::Float(1.0),
            ];
            kernels.launch("fill_bf16", (1024, 256, 0), &arguments, stream)?;
        }
        let workspace = arena.take(WORKSPACE_BYTES)?;
        let unequal = arena.take(8)?;
        Ok(Self {
            q,
            k,
            v,
            out,
            other,
            workspace,
            unequal,
            pairs: arena.take(u64::from(SAMPLES) * 128 * 16)?,
        })
    }

    /// Where the whole attention goes.
    pub(crate) fn out(&self) -> Address {
        self.out
    }

    /// Runs a plan into `out`.
    pub(crate) fn run(&self, dnn: &Dnn, plan: &Plan, out: Address) -> Result<()> {
        let factor = SCALE;
        let host = std::ptr::from_ref(&factor) as u64;
        dnn.execute(
            plan,
            &[(Q, self.q), (K, self.k), (V, self.v), (OUT, out), (FACTOR, host)],
            self.workspace,
        )
    }
}

fn tensor(
    uid: i64,
    dims: [i64; 4],
    strides: [i64; 4],
    kind: sys::cudnnDataType_t,
    is_virtual: bool,
) -> Result<Node> {
    let node = Node::new(Descriptor::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
    node.set(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, Type::CUDNN_TYPE_INT64, &[uid])?;
    node.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[kind])?;
    node.set(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, Type::CUDNN_TYPE_INT64, &dims)?;
    node.set(Name::CUDNN_ATTR_TENSOR_STRIDES, Type::CUDNN_TYPE_INT64, &strides)?;
    node.set(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, Type::CUDNN_TYPE_INT64, &[16_i64])?;
    node.set(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, Type::CUDNN_TYPE_BOOLEAN, &[is_virtual])?;
    if uid == FACTOR {
        node.set(Name::CUDNN_ATTR_TENSOR_IS_BY_VALUE, Type::CUDNN_TYPE_BOOLEAN, &[true])?;
    }
    node.finish(&format!("tensor {uid}"))?;
    Ok(node)
}

const BF16: sys::cudnnDataType_t = sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16;
const F32: sys::cudnnDataType_t = sys::cudnnDataType_t::CUDNN_DATA_FLOAT;

/// The operation graph; tensors are returned too, since operations refer to them.
fn describe(way: Way, shape: Shape) -> Result<(Vec<Node>, Vec<Node>)> {
    let strides = shape.strides();
    let of = |length| [shape.batch, HEADS, length, WIDTH];
    let query = tensor(Q, of(shape.queries), strides, BF16, false)?;
    let value = tensor(V, of(LENGTH), strides, BF16, false)?;
    let out = tensor(OUT, of(shape.queries), strides, BF16, false)?;
    let factor = tensor(FACTOR, [1; 4], [1; 4], F32, false)?;
    match way {
        Way::Unified => {
            let key = tensor(K, of(LENGTH), strides, BF16, false)?;
            let operation = Node::new(Descriptor::CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR)?;
            operation.refer(Name::CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, &query)?;
            operation.refer(Name::CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, &key)?;
            operation.refer(Name::CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, &value)?;
            operation.refer(Name::CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, &out)?;
            operation.refer(Name::CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, &factor)?;
            operation.finish("unified attention")?;
            Ok((vec![operation], vec![query, key, value, out, factor]))
        }
        Way::Pattern => pattern(shape, query, value, out, factor),
    }
}

fn pattern(
    shape: Shape,
    query: Node,
    value: Node,
    out: Node,
    factor: Node,
) -> Result<(Vec<Node>, Vec<Node>)> {
    let [sample, head, token, _] = shape.strides();
    let key =
        tensor(K, [shape.batch, HEADS, WIDTH, LENGTH], [sample, head, 1, token], BF16, false)?;
    let (rows, full) = (shape.queries, [shape.batch, HEADS, shape.queries, LENGTH]);
    let full_strides = [HEADS * rows * LENGTH, rows * LENGTH, LENGTH, 1];
    let scores = |uid, kind| tensor(uid, full, full_strides, kind, true);
    let per_row =
        |uid| tensor(uid, [shape.batch, HEADS, rows, 1], [HEADS * rows, rows, 1, 1], F32, true);
    let (raw, scaled, shifted, powers) =
        (scores(10, F32)?, scores(11, F32)?, scores(12, F32)?, scores(13, F32)?);
    let (most, sum, weights) = (per_row(14)?, per_row(15)?, scores(16, BF16)?);
    use sys::cudnnPointwiseMode_t as Mode;
    use sys::cudnnReduceTensorOp_t as Reduce;
    let operations = vec![
        product(&query, &key, &raw)?,
        pointwise(Mode::CUDNN_POINTWISE_MUL, &raw, Some(&factor), &scaled)?,
        reduction(Reduce::CUDNN_REDUCE_TENSOR_MAX, &scaled, &most)?,
        pointwise(Mode::CUDNN_POINTWISE_SUB, &scaled, Some(&most), &shifted)?,
        pointwise(Mode::CUDNN_POINTWISE_EXP, &shifted, None, &powers)?,
        reduction(Reduce::CUDNN_REDUCE_TENSOR_ADD, &powers, &sum)?,
        pointwise(Mode::CUDNN_POINTWISE_DIV, &powers, Some(&sum), &weights)?,
        product(&weights, &value, &out)?,
    ];
    Ok((
        operations,
        vec![query, key, value, out, factor, raw, scaled, shifted, powers, most, sum, weights],
    ))
}

fn product(left: &Node, right: &Node, out: &Node) -> Result<Node> {
    let kind = Node::new(Descriptor::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?;
    kind.set(Name::CUDNN_ATTR_MATMUL_COMP_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[F32])?;
    kind.finish("matmul")?;
    let operation = Node::new(Descriptor::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)?;
    operation.refer(Name::CUDNN_ATTR_OPERATION_MATMUL_ADESC, left)?;
    operation.refer(Name::CUDNN_ATTR_OPERATION_MATMUL_BDESC, right)?;
    operation.refer(Name::CUDNN_ATTR_OPERATION_MATMUL_CDESC, out)?;
    operation.refer(Name::CUDNN_ATTR_OPERATION_MATMUL_DESC, &kind)?;
    operation.finish("matmul operation")?;
    Ok(operation)
}

fn pointwise(
    mode: sys::cudnnPointwiseMode_t,
    left: &Node,
    right: Option<&Node>,
    out: &Node,
) -> Result<Node> {
    let kind = Node::new(Descriptor::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?;
    kind.set(Name::CUDNN_ATTR_POINTWISE_MODE, Type::CUDNN_TYPE_POINTWISE_MODE, &[mode])?;
    kind.set(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, Type::CUDNN_TYPE_DATA_TYPE, &[F32])?;
    kind.finish("pointwise")?;
    let operation = Node::new(Descriptor::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?;
    operation.refer(Name::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &kind)?;
    operation.refer(Name::CUDNN_ATTR_OPERATION_POINTWISE_XDESC, left)?;
    if let Some(right) = right {
        operation.refer(Name::CUDNN_ATTR_OPERATION_POINTWISE_BDESC, right)?;
    }
    operation.refer(Name::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out)?;
    operation.finish(&format!("{mode:?}"))?;
    Ok(operation)
}

fn reduction(operator: sys::cudnnReduceTensorOp_t, from: &Node, to: &Node) -> Result<Node> {
    let kind = Node::new(Descriptor::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?;
    kind.set(
        Name::CUDNN_ATTR_REDUCTION_OPERATOR,
        Type::CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
        &[operator],
    )?;
    kind.set(Name::CUDNN_ATTR_REDUCTION_COMP_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[F32])?;
    kind.finish("reduction")?;
    let operation = Node::new(Descriptor::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)?;
    operation.refer(Name::CUDNN_ATTR_OPERATION_REDUCTION_DESC, &kind)?;
    operation.refer(Name::CUDNN_ATTR_OPERATION_REDUCTION_XDESC, from)?;
    operation.refer(Name::CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to)?;
    operation.finish(&format!("{operator:?}"))?;
    Ok(operation)
}

/// Every plan that cuDNN offers for a shape.
pub(crate) fn plans(dnn: &Dnn, way: Way, shape: Shape) -> Result<Vec<Result<Plan>>> {
    let (operations, _tensors) = describe(way, shape)?;
    dnn.plans(&operations)
}

/// Runs the part and prints its table.
pub(crate) fn run(libraries: &Libraries) -> Result<()> {
    let gpu = Gpu::start()?;
    libraries.dnn()?;
    let (dnn, kernels, stream) = (Dnn::new()?, Kernels::load()?, Stream::new()?);
    dnn.set_stream(stream)?;
    println!("cudnn {} from {}", Dnn::version(), library::mapped_paths("cudnn"));
    let mut arena = Arena::new(OPERAND_BYTES + (1 << 20))?;
    let bench =
        Bench { operands: Operands::take(&mut arena, &kernels, stream)?, dnn, kernels, stream };
    gpu.synchronize()?;
    for way in [Way::Unified, Way::Pattern] {
        if let Err(error) = bench.way(way) {
            println!("{way:?}: {error}");
        }
    }
    Ok(())
}

struct Bench {
    dnn: Dnn,
    kernels: Kernels,
    stream: Stream,
    operands: Operands,
}

impl Bench {
    fn way(&self, way: Way) -> Result<()> {
        for (rank, plan) in plans(&self.dnn, way, Shape::PLAIN)?.into_iter().enumerate() {
            match plan.and_then(|plan| self.measure(&plan).map(|text| (plan, text))) {
                Ok((plan, text)) => {
                    println!("{way:?} #{rank} {} ws {}: {text}", plan.name, plan.workspace_bytes)
                }
                Err(error) => println!("{way:?} #{rank}: {error}"),
            }
        }
        let first = self.first(way, Shape::PLAIN)?;
        self.run(&first, self.operands.out)?;
        println!("{way:?} first plan through text: {}", self.through_text(&first));
        println!("{way:?} first plan in a captured graph: {}", self.captured(&first));
        let shapes = [
            ("512 of 4608 queries", Shape { queries: 512, ..Shape::PLAIN }),
            ("77 of 4608 queries", Shape { queries: 77, ..Shape::PLAIN }),
            ("batch of 2", Shape { batch: 2, ..Shape::PLAIN }),
        ];
        for (name, shape) in shapes {
            println!(
                "{way:?} {name}: {}",
                self.rows(way, shape).unwrap_or_else(|error| error.to_string())
            );
        }
        let tokens_first = self.first(way, Shape { tokens_first: true, ..Shape::PLAIN })?;
        println!(
            "{way:?} (length, heads, width) layout: {:.4} ms (timed only), {}",
            self.time(&tokens_first)?,
            tokens_first.name
        );
        Ok(())
    }

    fn first(&self, way: Way, shape: Shape) -> Result<Plan> {
        let mut last = None;
        for plan in plans(&self.dnn, way, shape)? {
            match plan {
                Ok(plan) => return Ok(plan),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or(crate::error::Error::Dnn {
            call: "plans".into(),
            status: "the heuristic offers none".into(),
            message: String::new(),
        }))
    }

    fn run(&self, plan: &Plan, out: Address) -> Result<()> {
        self.operands.run(&self.dnn, plan, out)
    }

    fn time(&self, plan: &Plan) -> Result<f64> {
        self.run(plan, self.operands.other)?;
        let times = (0..5).map(|_| {
            self.stream.time_ms(|| (0..10).try_for_each(|_| self.run(plan, self.operands.other)))
        });
        Ok(median(times.collect::<Result<_>>()?) / 10.0)
    }

    fn measure(&self, plan: &Plan) -> Result<String> {
        assert!(
            plan.workspace_bytes <= WORKSPACE_BYTES,
            "a plan wants {} bytes of workspace",
            plan.workspace_bytes
        );
        self.stream.fill(self.operands.out, 0xff, 2 * sample_bytes())?;
        self.run(plan, self.operands.out)?;
        let words = [
            self.operands.q,
            self.operands.k,
            self.operands.v,
            self.operands.out,
            HEADS as u64,
            LENGTH as u64,
        ];
        let mut arguments: Vec<Argument> = words.into_iter().map(Argument::Word).collect();
        arguments.extend([Argument::Float(SCALE), Argument::Word(self.operands.pairs)]);
        self.kernels.launch(
            "attention_sample",
            (SAMPLES, 128, LENGTH as u32 * 4),
            &arguments,
            self.stream,
        )?;
        self.stream.synchronize()?;
        let error = relative_error(&read_words(self.operands.pairs, SAMPLES as usize * 256)?);
        let milliseconds = self.time(plan)?;
        let operations = 4.0 * (HEADS * LENGTH * LENGTH * WIDTH) as f64;
        Ok(format!(
            "{milliseconds:.4} ms, {:.0} TFLOP/s, relative error {error:.1e}",
            operations / (milliseconds * 1e9)
        ))
    }

    /// Compares the first `queries` rows of each head of the first sample with what the whole gave.
    fn unequal(&self, queries: i64) -> Result<u64> {
        self.stream.fill(self.operands.unequal, 0, 8)?;
        for head in 0..HEADS {
            let offset = (head * LENGTH * WIDTH * 2) as u64;
            let words = (queries * WIDTH / 2) as u64;
            let arguments = [
                self.operands.out + offset,
                self.operands.other + offset,
                words,
                self.operands.unequal,
            ]
            .map(Argument::Word);
            self.kernels.launch("count_unequal", (64, 256, 0), &arguments, self.stream)?;
        }
        self.stream.synchronize()?;
        Ok(read_words(self.operands.unequal, 1)?[0])
    }

    fn rows(&self, way: Way, shape: Shape) -> Result<String> {
        let plan = self.first(way, shape)?;
        self.stream.fill(self.operands.other, 0xff, 2 * sample_bytes())?;
        self.run(&plan, self.operands.other)?;
        let unequal = self.unequal(shape.queries)?;
        Ok(format!(
            "{unequal} unequal words, {:.4} ms, {} ws {}",
            self.time(&plan)?,
            plan.name,
            plan.workspace_bytes
        ))
    }

    fn through_text(&self, plan: &Plan) -> String {
        let attempt = || -> Result<String> {
            let (length, again) = self.dnn.through_text(plan)?;
            self.stream.fill(self.operands.other, 0xff, sample_bytes())?;
            self.run(&again, self.operands.other)?;
            Ok(format!("{length} characters, {} unequal words", self.unequal(LENGTH)?))
        };
        attempt().unwrap_or_else(|error| error.to_string())
    }

    fn captured(&self, plan: &Plan) -> String {
        let attempt = || -> Result<String> {
            self.stream.fill(self.operands.other, 0xff, sample_bytes())?;
            let graph = self.stream.capture(|| self.run(plan, self.operands.other))?;
            graph.launch(self.stream)?;
            self.stream.synchronize()?;
            Ok(format!("{} nodes, {} unequal words", graph.node_count, self.unequal(LENGTH)?))
        };
        attempt().unwrap_or_else(|error| error.to_string())
    }
}
