//! The host's tables are those of diffusers and transformers, bit for bit.
#![allow(clippy::unwrap_used)] // In tests, helper functions too.

use plimsoll_pipeline::host_tables::{RotaryTable, t5_position_buckets};
use sha2::{Digest, Sha256};

fn digest(bytes: impl IntoIterator<Item = [u8; 4]>) -> String {
    let bytes: Vec<u8> = bytes.into_iter().flatten().collect();
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    hex[..32].to_owned()
}

/// `FluxPosEmbed` of diffusers 0.42.1 under torch 2.11.0: cosines, then sines, each pair once.
#[test]
fn rotary_tables_have_the_digest_of_the_reference() {
    let cases = [
        ((32, 8, 8), [8, 28, 28], "cfb06df057b1de5cb556e930bc0590e0"),
        ((512, 64, 64), [16, 56, 56], "d0f947ef50b0e8c84a20252613dd4d7c"),
        ((5, 3, 130), [4, 6, 10], "cb68ced53f7938ba45f8dba97b27d712"),
        ((0, 128, 256), [16, 56, 56], "4e8d9426cd4d8ec3fdc6c322a3d3e05f"),
    ];
    for ((text, rows, columns), axes, expected) in cases {
        let table = RotaryTable::flux(text, rows, columns, axes, 10_000.0).unwrap();
        let found = digest(table.values.iter().map(|value| value.to_le_bytes()));
        assert_eq!(found, expected, "{text} {rows} {columns} {axes:?}");
    }
}

/// `T5Attention._relative_position_bucket` of transformers 5.17.0.
#[test]
fn bucket_tables_have_the_digest_of_the_reference() {
    let cases = [
        (512, 32, 128, "35caacf9cda5adf54f7fda843730fdb8"),
        (256, 32, 128, "749754664579915bcdd8ac1a7d0a40a5"),
        (32, 32, 128, "9abf7143867594c28711ff194c0be83d"),
        (4096, 64, 200, "8bb7791c8ca5a29cdb45de09c29f9ac9"),
        (300, 8, 20, "8739a0b3d350e939d675e1d89527ee22"),
    ];
    for (tokens, buckets, distance, expected) in cases {
        let table = t5_position_buckets(tokens, buckets, distance).unwrap();
        let found = digest(table.iter().map(|value| value.to_le_bytes()));
        assert_eq!(found, expected, "{tokens} {buckets} {distance}");
    }
}
