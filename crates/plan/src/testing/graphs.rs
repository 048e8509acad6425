//! Random graphs: everything that a real model's shape may be, at the size of a toy.

use plimsoll_graph::{
    Activation, Builder, ComponentId, DType, Dependence, Graph, LowerOptions, Norm, PhaseKind,
    Residual, Value, WeightId,
};

use super::Rng;

/// What a random graph contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphTraits {
    /// Values are kept over many blocks and read again.
    pub has_skips: bool,
    /// Two components whose blocks interleave in a step.
    pub has_second_component: bool,
    /// A tensor lives across steps beside the latent.
    pub has_state: bool,
    /// Some blocks are many times as large as others.
    pub has_unequal_blocks: bool,
    /// A weight is read by two blocks.
    pub has_tied_weights: bool,
    /// Steps of the loop.
    pub steps: u32,
    /// Pictures in a run.
    pub samples: u32,
}

/// A graph with encode, hoist, denoise and decode phases that follows from the seed alone.
///
/// One in fifty is a single op.
///
/// # Panics
/// Never for a graph that the builder accepts, which is every seed.
#[expect(clippy::expect_used, reason = "a trace that does not lower is a bug of this generator")]
pub fn random_graph(seed: u64) -> (Graph, GraphTraits) {
    let mut rng = Rng::new(seed);
    let traits = GraphTraits {
        has_skips: rng.one_in(2),
        has_second_component: rng.one_in(3),
        has_state: rng.one_in(3),
        has_unequal_blocks: rng.one_in(2),
        has_tied_weights: rng.one_in(6),
        steps: u32::try_from(rng.within(1, 6)).unwrap_or(1),
        samples: if rng.one_in(4) { u32::try_from(rng.within(2, 3)).unwrap_or(2) } else { 1 },
    };
    let dtype = if rng.one_in(2) { DType::BF16 } else { DType::F32 };
    let weight_dtype = move |_: &str, _: &str| dtype;
    let builder = Builder::new(dtype, &weight_dtype);
    let hoist = !rng.one_in(5);
    let options = LowerOptions { steps: traits.steps, samples: traits.samples, hoist };
    let mut maker = Maker { builder, rng, traits, tied: Vec::new(), in_loop: false };
    if maker.rng.one_in(50) {
        maker.single_op();
    } else {
        maker.pipeline();
    }
    let graph = maker.builder.finish(&options).expect("a sound trace");
    (graph, traits)
}

struct Maker<'a> {
    builder: Builder<'a>,
    rng: Rng,
    traits: GraphTraits,
    /// Square weights that a later block may read again: `(width, weight)`.
    tied: Vec<(u64, WeightId)>,
    in_loop: bool,
}

impl Maker<'_> {
    fn single_op(&mut self) {
        let component = self.builder.component("only");
        self.builder.phase(PhaseKind::Decode, "decode");
        self.builder.block(component, "block");
        let (rows, cols) = (self.rng.within(1, 40), self.rng.within(1, 40));
        self.builder.input("x", rows, cols, DType::F32, Dependence::Run);
    }

    fn pipeline(&mut self) {
        let tokens = self.rng.within(4, 48);
        let width = 8 * self.rng.within(1, 12);
        let mut prompts = Vec::new();
        for index in 0..self.rng.within(0, 2) {
            let component = self.builder.component(&format!("text_encoder_{index}"));
            self.builder.phase(PhaseKind::Encode, &format!("encode_{index}"));
            prompts.push(self.chain(component, "encode", width, Dependence::Run));
        }
        self.in_loop = true;
        let latent = self.denoise(&prompts, tokens, width);
        let vae = self.builder.component("vae");
        self.builder.phase(PhaseKind::Decode, "decode");
        self.decode(vae, latent);
    }

    /// A chain of blocks from an input.
    fn chain(
        &mut self,
        component: ComponentId,
        name: &str,
        width: u64,
        dependence: Dependence,
    ) -> Value {
        self.builder.block(component, format!("{name}.in"));
        let rows = self.rng.within(2, 32);
        let dtype = self.builder.dtype();
        let mut x = self.builder.input("ids", rows, width, dtype, dependence);
        for index in 0..self.rng.within(1, 8) {
            self.builder.block(component, format!("{name}.{index}"));
            x = self.block(x, None);
        }
        x
    }

    fn denoise(&mut self, prompts: &[Value], tokens: u64, width: u64) -> Value {
        let component = self.builder.component("transformer");
        let second = self.traits.has_second_component.then(|| self.builder.component("control"));
        self.builder.phase(PhaseKind::Denoise, "denoise");
        self.builder.block(component, "in");
        let dtype = self.builder.dtype();
        let latent = self.builder.input("latent", tokens, width, DType::F32, Dependence::Latent);
        let dsigma = self.builder.input("dsigma", 1, 1, DType::F32, Dependence::Step);
        let timestep = self.builder.input("timestep", 1, width, dtype, Dependence::Step);
        let state = self.traits.has_state.then(|| {
            let rows = tokens * self.rng.within(1, 3);
            self.builder.input("state", rows, width, dtype, Dependence::Latent)
        });
        let mut x = self.linear("embed", latent, width, None);
        if let Some(prompt) = prompts.first() {
            let text = self.linear("text", prompt.slice_rows(0, 1), width, None);
            x = self.builder.add("join", x, text);
        }
        let mut kept = Vec::new();
        for index in 0..self.rng.within(1, 14) {
            let owner = match second {
                Some(second) if self.rng.one_in(3) => second,
                _ => component,
            };
            self.builder.block(owner, format!("block.{index}"));
            let modulation = self.rng.one_in(2).then_some(timestep);
            x = self.block(x, modulation);
            if self.traits.has_skips {
                if self.rng.one_in(2) {
                    kept.push(x);
                } else if let (Some(skip), true) = (kept.pop(), self.rng.one_in(2)) {
                    x = self.builder.add("skip", x, skip);
                }
            }
            if let (Some(state), true) = (state, self.rng.one_in(4)) {
                let part = state.slice_rows(0, tokens);
                x = self.builder.add("recall", x, part);
                self.builder.copy("keep", x, part);
            }
        }
        self.builder.block(component, "out");
        for skip in kept {
            x = self.builder.add("last skip", x, skip);
        }
        let velocity = self.linear("velocity", x, width, None);
        self.builder.euler("euler", latent, velocity, dsigma);
        latent
    }

    fn decode(&mut self, component: ComponentId, latent: Value) {
        self.builder.block(component, "decode.in");
        let channels = 8 * self.rng.within(1, 24);
        let mut x = self.linear("widen", latent, channels, None);
        for index in 0..self.rng.within(1, 6) {
            self.builder.block(component, format!("decode.{index}"));
            x = self.block(x, None);
        }
        self.builder.output("image", x);
    }

    fn linear(&mut self, name: &str, x: Value, cols: u64, residual: Option<Residual>) -> Value {
        let weight = self.builder.weight(name, &[(name.to_owned(), vec![cols, x.cols])]);
        let bias = self.rng.one_in(2).then(|| {
            self.builder.weight(&format!("{name}.bias"), &[(name.to_owned(), vec![cols])])
        });
        match residual {
            None => self.builder.linear(name, x, weight, bias, Activation::None),
            Some(residual) => {
                let out = residual.base;
                let silu = Activation::Silu;
                self.builder.linear_into(name, x, weight, bias, silu, Some(residual), out);
                out
            }
        }
    }

    /// One to three layers over `x`.
    fn block(&mut self, mut x: Value, modulation: Option<Value>) -> Value {
        if let Some(timestep) = modulation {
            let both = self.linear("modulation", timestep, 2 * x.cols, None);
            let (scale, shift) = (both.slice_cols(0, x.cols), both.slice_cols(x.cols, x.cols));
            x = self.builder.modulated_norm("norm", x, scale, shift);
        }
        for layer in 0..self.rng.within(1, 3) {
            let name = |what: &str| format!("{what}.{layer}");
            x = match self.rng.within(0, 4) {
                0 => self.attention(&name("attention"), x),
                1 | 2 => {
                    let times =
                        if self.traits.has_unequal_blocks && self.rng.one_in(6) { 24 } else { 3 };
                    let hidden = x.cols * self.rng.within(1, times);
                    let up = self.linear(&name("up"), x, hidden, None);
                    let up = self.builder.activate(&name("act"), up, Activation::GeluTanh);
                    let residual = self.rng.one_in(2).then_some(Residual { base: x, gate: None });
                    self.linear(&name("down"), up, x.cols, residual)
                }
                3 => {
                    let parts = [(name("weight"), vec![x.cols])];
                    let weight = self.builder.weight(&name("rms"), &parts);
                    self.builder.norm(&name("rms"), x, Norm::Rms { eps: 1e-6, weight })
                }
                _ => self.square(&name("square"), x),
            };
        }
        x
    }

    fn attention(&mut self, name: &str, x: Value) -> Value {
        let qkv = self.linear(&format!("{name}.qkv"), x, 3 * x.cols, None);
        let part = |at: u64| qkv.slice_cols(at * x.cols, x.cols);
        let parts = [part(0), part(1), part(2)];
        // Into a column range of a wider tensor, as the real models do it, or into one of its own.
        let dtype = self.builder.dtype();
        let dependence = if self.in_loop { Dependence::Latent } else { Dependence::Run };
        let cols = x.cols * self.rng.within(1, 2);
        let wide = self.builder.buffer(&format!("{name}.out"), x.rows, cols, dtype, dependence);
        let out = wide.slice_cols(cols - x.cols, x.cols);
        self.builder.attention_into(name, parts, 1, 0.5, false, None, out);
        self.linear(&format!("{name}.proj"), out, x.cols, None)
    }

    /// A square layer, whose weight may be one of an earlier block.
    fn square(&mut self, name: &str, x: Value) -> Value {
        let known = self.tied.iter().find(|(width, _)| *width == x.cols).map(|(_, weight)| *weight);
        let weight = match known {
            Some(weight) if self.traits.has_tied_weights && self.rng.one_in(2) => weight,
            _ => {
                let parts = [(name.to_owned(), vec![x.cols, x.cols])];
                let weight = self.builder.weight(name, &parts);
                self.tied.push((x.cols, weight));
                weight
            }
        };
        self.builder.linear(name, x, weight, None, Activation::None)
    }
}
