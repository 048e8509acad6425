//! Initial noise: `torch.randn` of a seed on the CPU, bit for bit, on every host.
//!
//! The same seed must give the same picture here, in ComfyUI and in diffusers.
//! So the stream of torch's CPU generator is reproduced in full: the mt19937 state, the order in
//! which numbers are drawn, and the arithmetic that turns them into normals.
//!
//! Three paths, as torch 2.11 has them on x86-64 (with AVX-512 too it runs its AVX2 kernel here):
//! - f32, 16 elements and more: all uniforms first, then Box-Muller in place over blocks of 16 with
//!   the pairs (j, j + 8).
//!   Logarithm, sine and cosine are the f32 polynomials of Cephes; the compiler of torch's wheels
//!   fuses their multiplications and additions, and so does this file, operation by operation.
//!   A tail that does not fill a block is covered by drawing the **last 16** elements anew.
//! - bf16, 16 elements and more: the same order, but every single operation rounds to bf16.
//! - fewer than 16: pair by pair in f64 with `log1p`, the second normal of a pair kept for the next
//!   element, and for the next tensor.
//!
//! # Determinism
//! Only IEEE operations: no `libm`, no CPU feature, no thread changes a bit.
//! Torch itself differs on a CPU without AVX2 and on ARM, where its f32 path uses the platform's
//! `libm`; what is reproduced is the x86-64 result, which published pictures were made with.
//! Checked once over 10^8 f32 and 2 * 10^7 bf16 elements of one seed: not a bit differs.
//!
//! # Source
//! pytorch 2.11 `aten/src/ATen/native/cpu/DistributionTemplates.h`, `avx_mathfun.h`,
//! `core/MT19937RNGEngine.h`, `core/TransformationHelper.h`; constants of the polynomials: Cephes
//! `logf.c`, `sinf.c` (Moshier).

use half::bf16;

use crate::math::{fused_multiply_add as fma, ln, sin_cos};

const STATE_LEN: usize = 624;
const STATE_LAG: usize = 397;
/// Elements that Box-Muller turns at a time; a tensor below this size takes the scalar path.
const BLOCK: usize = 16;
const HALF_BLOCK: usize = BLOCK / 2;
const TWO_PI: f64 = std::f64::consts::TAU;

/// The generator of `torch.Generator().manual_seed(seed)` on the CPU.
///
/// Successive fills continue one stream, exactly as successive `torch.randn` calls with one
/// generator do.
#[derive(Clone, Debug)]
pub struct TorchGenerator {
    state: [u32; STATE_LEN],
    next_index: usize,
    /// The second normal of the last scalar pair, which the next scalar draw uses first.
    spare_normal: Option<f64>,
}

impl TorchGenerator {
    /// Seeds as torch does: only the low 32 bits enter the state, so that `s` and `s + 2^32` give
    /// one stream.
    pub fn new(seed: u64) -> Self {
        let mut state = [0_u32; STATE_LEN];
        #[allow(clippy::cast_possible_truncation)] // The low half is what torch keeps.
        let mut word = seed as u32;
        state[0] = word;
        for (index, slot) in (0_u32..).zip(state.iter_mut()).skip(1) {
            word = 1_812_433_253_u32.wrapping_mul(word ^ (word >> 30)).wrapping_add(index);
            *slot = word;
        }
        Self { state, next_index: STATE_LEN, spare_normal: None }
    }

    /// Fills `target` as `torch.randn(len, dtype=torch.float32)`; with 16 elements and more by the
    /// vectorised path.
    pub fn fill_f32(&mut self, target: &mut [f32]) {
        if target.len() < BLOCK {
            for value in target {
                #[allow(clippy::cast_possible_truncation)] // Torch's own cast.
                {
                    *value = self.scalar_normal() as f32;
                }
            }
            return;
        }
        target.fill_with(|| self.uniform_f32());
        let (blocks, tail) = target.as_chunks_mut::<BLOCK>();
        blocks.iter_mut().for_each(box_muller_f32);
        if !tail.is_empty()
            && let Some(last) = target.last_chunk_mut::<BLOCK>()
        {
            last.fill_with(|| self.uniform_f32());
            box_muller_f32(last);
        }
    }

    /// Fills `target` as `torch.randn(len, dtype=torch.bfloat16)`: what a bf16 diffusers pipeline
    /// starts from.
    ///
    /// These are not the rounded f32 normals of the same seed: each uniform has 8 bits, and each
    /// operation rounds.
    pub fn fill_bf16(&mut self, target: &mut [bf16]) {
        if target.len() < BLOCK {
            for value in target {
                #[allow(clippy::cast_possible_truncation)] // Torch goes through f32 too.
                {
                    *value = bf16::from_f32(self.scalar_normal() as f32);
                }
            }
            return;
        }
        let table = Bf16Table::new();
        target.fill_with(|| self.uniform_bf16());
        let (blocks, tail) = target.as_chunks_mut::<BLOCK>();
        blocks.iter_mut().for_each(|block| table.box_muller(block));
        if !tail.is_empty()
            && let Some(last) = target.last_chunk_mut::<BLOCK>()
        {
            last.fill_with(|| self.uniform_bf16());
            table.box_muller(last);
        }
    }

    /// The next tempered word of mt19937 (Matsumoto and Nishimura 1998).
    fn next_u32(&mut self) -> u32 {
        if self.next_index == STATE_LEN {
            self.twist();
        }
        let mut y = self.state[self.next_index];
        self.next_index += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    fn twist(&mut self) {
        for index in 0..STATE_LEN {
            let (this, next) = (self.state[index], self.state[(index + 1) % STATE_LEN]);
            let joined = (this & 0x8000_0000) | (next & 0x7fff_ffff);
            let feedback = if next & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[index] =
                self.state[(index + STATE_LAG) % STATE_LEN] ^ (joined >> 1) ^ feedback;
        }
        self.next_index = 0;
    }

    /// 24 low bits, scaled to [0, 1): exact in f32.
    fn uniform_f32(&mut self) -> f32 {
        (self.next_u32() & 0x00ff_ffff) as f32 * (1.0 / 16_777_216.0)
    }

    /// 8 low bits, scaled to [0, 1): exact in bf16.
    fn uniform_bf16(&mut self) -> bf16 {
        bf16::from_f32((self.next_u32() & 0xff) as f32 / 256.0)
    }

    /// 53 low bits of two words, the first word high, scaled to [0, 1).
    fn uniform_f64(&mut self) -> f64 {
        let (high, low) = (self.next_u32(), self.next_u32());
        let word = (u64::from(high) << 32) | u64::from(low);
        #[allow(clippy::cast_precision_loss)] // 53 bits are exact in f64.
        let value = (word & 0x001f_ffff_ffff_ffff) as f64;
        value * (1.0 / 9_007_199_254_740_992.0)
    }

    /// One normal by scalar Box-Muller, in f64.
    fn scalar_normal(&mut self) -> f64 {
        if let Some(spare) = self.spare_normal.take() {
            return spare;
        }
        let angle = TWO_PI * self.uniform_f64();
        // 1 - u is exact for a u of 53 bits, so this is log1p(-u).
        let radius = (-2.0 * ln(1.0 - self.uniform_f64())).sqrt();
        let (sine, cosine) = sin_cos(angle);
        self.spare_normal = Some(radius * sine);
        radius * cosine
    }
}

/// Turns 16 uniforms into 16 normals: radius from element j, angle from element j + 8.
fn box_muller_f32(block: &mut [f32; BLOCK]) {
    let (firsts, seconds) = block.split_at_mut(HALF_BLOCK);
    for (first, second) in firsts.iter_mut().zip(seconds) {
        #[allow(clippy::cast_possible_truncation)] // Torch rounds 2 pi to f32 once.
        let angle = TWO_PI as f32 * *second;
        let radius = (-2.0 * cephes_ln(1.0 - *first)).sqrt();
        let (sine, cosine) = cephes_sin_cos(angle);
        // Torch ends with `x * std + mean` for std 1 and mean 0; the sum turns a -0 into +0.
        *first = radius * cosine + 0.0;
        *second = radius * sine + 0.0;
    }
}

/// Natural logarithm of x in [2^-24, 1], in the order and with the fusions of torch's AVX2 kernel.
#[allow(clippy::excessive_precision)] // The digits of Cephes: shorter ones round otherwise.
fn cephes_ln(x: f32) -> f32 {
    const POLYNOMIAL: [f32; 9] = [
        7.037_683_629_2e-2,
        -1.151_461_031_0e-1,
        1.167_699_874_0e-1,
        -1.242_014_084_6e-1,
        1.424_932_278_7e-1,
        -1.666_805_766_5e-1,
        2.000_071_476_5e-1,
        -2.499_999_399_3e-1,
        3.333_333_117_4e-1,
    ];
    // ln 2 in two parts, the first with few bits.
    const LN_2_LOW: f32 = -2.121_944_40e-4;
    const LN_2_HIGH: f32 = 0.693_359_375;

    let bits = x.to_bits();
    let mut exponent = (bits >> 23) as f32 - 126.0;
    let mut mantissa = f32::from_bits((bits & 0x007f_ffff) | 0x3f00_0000); // In [0.5, 1).
    if mantissa < std::f32::consts::FRAC_1_SQRT_2 {
        exponent -= 1.0;
        mantissa = (mantissa - 1.0) + mantissa;
    } else {
        mantissa -= 1.0;
    }
    let square = mantissa * mantissa;
    let mut y = POLYNOMIAL[0];
    for coefficient in &POLYNOMIAL[1..] {
        y = fma(y, mantissa, *coefficient);
    }
    y *= mantissa;
    y = fma(y, square, exponent * LN_2_LOW);
    y = fma(square, -0.5, y);
    fma(exponent, LN_2_HIGH, mantissa + y)
}

/// Sine and cosine of an angle in [0, 2 pi), in the order and with the fusions of that kernel.
#[allow(clippy::excessive_precision)] // As above.
fn cephes_sin_cos(angle: f32) -> (f32, f32) {
    const FOUR_OVER_PI: f32 = 1.273_239_544_735_16;
    // -pi/4 in three parts for the exact reduction.
    const MINUS_QUARTER_PI: [f32; 3] =
        [-0.785_156_25, -2.418_756_484_985_351_6e-4, -3.774_894_977_445_941e-8];
    const COSINE: [f32; 3] =
        [2.443_315_711_809_948e-5, -1.388_731_625_493_765e-3, 4.166_664_568_298_827e-2];
    const SINE: [f32; 3] = [-1.951_529_589_1e-4, 8.332_160_873_6e-3, -1.666_665_461_1e-1];

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    // In [0, 8] by the range of the angle.
    let octant = ((angle * FOUR_OVER_PI) as u32 + 1) & !1;
    let eighths = octant as f32;
    let x = MINUS_QUARTER_PI.iter().fold(angle, |x, part| fma(eighths, *part, x));
    let z = x * x;

    let mut cosine = fma(COSINE[0], z, COSINE[1]);
    cosine = fma(cosine, z, COSINE[2]) * z;
    cosine = fma(cosine, z, z * -0.5) + 1.0;

    let mut sine = fma(SINE[0], z, SINE[1]);
    sine = fma(sine, z, SINE[2]) * z;
    sine = fma(sine, x, x);

    let (sine, cosine) = if octant & 2 == 0 { (sine, cosine) } else { (cosine, sine) };
    (
        if octant & 4 == 0 { sine } else { -sine },
        if octant.wrapping_sub(2) & 4 != 0 { cosine } else { -cosine },
    )
}

/// Radius, cosine and sine of the 256 uniforms that bf16 has, each operation rounded to bf16 as
/// torch rounds it.
struct Bf16Table {
    radius: [f32; 256],
    cosine: [f32; 256],
    sine: [f32; 256],
}

#[allow(clippy::cast_possible_truncation)] // f64 -> f32 -> bf16 is the rounding of the reference.
fn round_bf16(value: f64) -> f32 {
    bf16::from_f32(value as f32).to_f32()
}

impl Bf16Table {
    fn new() -> Self {
        let mut table = Self { radius: [0.0; 256], cosine: [0.0; 256], sine: [0.0; 256] };
        for index in 0..256_usize {
            #[allow(clippy::cast_precision_loss)] // Below 256.
            let uniform = index as f64 / 256.0;
            let logarithm = f64::from(round_bf16(ln(1.0 - uniform)));
            table.radius[index] = round_bf16((-2.0 * logarithm).sqrt());
            let (sine, cosine) = sin_cos(f64::from(round_bf16(TWO_PI * uniform)));
            table.cosine[index] = round_bf16(cosine);
            table.sine[index] = round_bf16(sine);
        }
        table
    }

    fn box_muller(&self, block: &mut [bf16; BLOCK]) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // k/256 for k below 256.
        let index = |uniform: bf16| (uniform.to_f32() * 256.0) as usize & 0xff;
        let (firsts, seconds) = block.split_at_mut(HALF_BLOCK);
        for (first, second) in firsts.iter_mut().zip(seconds) {
            let (u1, u2) = (index(*first), index(*second));
            *first = bf16::from_f32(self.radius[u1] * self.cosine[u2] + 0.0);
            *second = bf16::from_f32(self.radius[u1] * self.sine[u2] + 0.0);
        }
    }
}
