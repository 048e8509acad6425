//! A card for tests, or word that there is none.
#![allow(dead_code, unreachable_pub, missing_docs)]

use plimsoll_device_cuda::{Card, CardOptions, CudaDevice, CudaError, HostOptions, Probing};

/// Options under which files are taken for fit (the test's own program is no child that could try them), and are lent
/// for a single copy.
pub fn options() -> CardOptions {
    let host =
        HostOptions { probing: Probing::Skip, registered_uses_min: 1, ..HostOptions::default() };
    CardOptions { host, ..CardOptions::default() }
}

/// The first card; `None`, with a word about it, only where there is no driver.
pub fn open(options: CardOptions) -> Option<Card> {
    match Card::open(0, options) {
        Ok(card) => Some(card),
        Err(CudaError::NoDriver) => {
            println!("no CUDA card: skipped");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A device with an arena on the first card.
pub fn device(arena_bytes: u64, options: CardOptions) -> Option<CudaDevice> {
    open(options).map(|card| match CudaDevice::new(card, arena_bytes) {
        Ok(device) => device,
        Err(error) => panic!("{error}"),
    })
}
