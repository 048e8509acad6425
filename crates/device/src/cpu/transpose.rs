//! Transposes blocks of 16x16 floats: rows of activations to vector lanes and back.
//!
//! Left to the compiler this is a load and a store an element and costs a third of a small product; with shuffles it is a quarter of a cycle an element.

use super::simd::Isa;

/// Side of a block.
pub(crate) const SIDE: usize = 16;

/// A square block.
pub(crate) type Block = [[f32; SIDE]; SIDE];

/// Rows to columns.
#[inline(always)]
pub(crate) fn transposed(isa: Isa, block: &Block) -> Block {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::V4(token) => x86::transposed_v4(token, block),
        #[cfg(target_arch = "x86_64")]
        Isa::V3(token) => x86::transposed_v3(token, block),
        Isa::Plain => plain(block),
    }
}

#[inline(always)]
fn plain(block: &Block) -> Block {
    let mut out = [[0.0; SIDE]; SIDE];
    for (i, row) in block.iter().enumerate() {
        for (j, value) in row.iter().enumerate() {
            out[j][i] = *value;
        }
    }
    out
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m256, __m512};

    use pulp::cast;
    use pulp::x86::{V3, V4};

    use super::{Block, SIDE};

    /// Four rounds: pairs of rows, pairs of pairs, then quarters of registers twice.
    #[inline(always)]
    pub(super) fn transposed_v4(token: V4, block: &Block) -> Block {
        let isa = token.avx512f;
        let rows: [__m512; SIDE] = cast(*block);
        let mut pairs = rows;
        for i in 0..8 {
            pairs[2 * i] = isa._mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
            pairs[2 * i + 1] = isa._mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
        }
        let low =
            |a: __m512, b: __m512| -> __m512 { cast(isa._mm512_unpacklo_pd(cast(a), cast(b))) };
        let high =
            |a: __m512, b: __m512| -> __m512 { cast(isa._mm512_unpackhi_pd(cast(a), cast(b))) };
        // quads[4 i + c]: columns c, c + 4, c + 8, c + 12 of rows 4 i .. 4 i + 4.
        let mut quads = pairs;
        for i in 0..4 {
            quads[4 * i] = low(pairs[4 * i], pairs[4 * i + 2]);
            quads[4 * i + 1] = high(pairs[4 * i], pairs[4 * i + 2]);
            quads[4 * i + 2] = low(pairs[4 * i + 1], pairs[4 * i + 3]);
            quads[4 * i + 3] = high(pairs[4 * i + 1], pairs[4 * i + 3]);
        }
        let mut out = quads;
        for c in 0..4 {
            // Quarters of the columns c, c + 8 and c + 4, c + 12.
            let a = isa._mm512_shuffle_f32x4::<0x88>(quads[c], quads[4 + c]);
            let b = isa._mm512_shuffle_f32x4::<0x88>(quads[8 + c], quads[12 + c]);
            let d = isa._mm512_shuffle_f32x4::<0xDD>(quads[c], quads[4 + c]);
            let e = isa._mm512_shuffle_f32x4::<0xDD>(quads[8 + c], quads[12 + c]);
            out[c] = isa._mm512_shuffle_f32x4::<0x88>(a, b);
            out[8 + c] = isa._mm512_shuffle_f32x4::<0xDD>(a, b);
            out[4 + c] = isa._mm512_shuffle_f32x4::<0x88>(d, e);
            out[12 + c] = isa._mm512_shuffle_f32x4::<0xDD>(d, e);
        }
        cast(out)
    }

    /// Four blocks of 8x8.
    #[inline(always)]
    pub(super) fn transposed_v3(token: V3, block: &Block) -> Block {
        let halves: [[__m256; 2]; SIDE] = cast(*block);
        let mut out = halves;
        for (row_half, col_half) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut part = [halves[0][0]; 8];
            for i in 0..8 {
                part[i] = halves[8 * row_half + i][col_half];
            }
            let turned = eight(token, part);
            for i in 0..8 {
                out[8 * col_half + i][row_half] = turned[i];
            }
        }
        cast(out)
    }

    /// 8x8: pairs of rows, pairs of pairs, halves of registers.
    #[inline(always)]
    fn eight(token: V3, rows: [__m256; 8]) -> [__m256; 8] {
        let isa = token.avx;
        let mut pairs = rows;
        for i in 0..4 {
            pairs[2 * i] = isa._mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
            pairs[2 * i + 1] = isa._mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
        }
        let mut quads = pairs;
        for i in 0..2 {
            let [a, b, c, d] = [pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2], pairs[4 * i + 3]];
            quads[4 * i] = isa._mm256_shuffle_ps::<0x44>(a, c);
            quads[4 * i + 1] = isa._mm256_shuffle_ps::<0xEE>(a, c);
            quads[4 * i + 2] = isa._mm256_shuffle_ps::<0x44>(b, d);
            quads[4 * i + 3] = isa._mm256_shuffle_ps::<0xEE>(b, d);
        }
        let mut out = quads;
        for c in 0..4 {
            out[c] = isa._mm256_permute2f128_ps::<0x20>(quads[c], quads[4 + c]);
            out[4 + c] = isa._mm256_permute2f128_ps::<0x31>(quads[c], quads[4 + c]);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::simd::{Isa, vectorised};
    use super::{Block, plain, transposed};

    fn numbered() -> Block {
        std::array::from_fn(|i| std::array::from_fn(|j| (16 * i + j) as f32))
    }

    #[test]
    fn every_instruction_set_transposes_alike() {
        let block = numbered();
        let expected = plain(&block);
        assert_eq!(expected[3][5], block[5][3]);
        vectorised(|isa| assert_eq!(transposed(isa, &block), expected));
        #[cfg(target_arch = "x86_64")]
        if let Some(token) = pulp::x86::V3::try_new() {
            assert_eq!(transposed(Isa::V3(token), &block), expected);
        }
        assert_eq!(transposed(Isa::Plain, &block), expected);
    }
}
