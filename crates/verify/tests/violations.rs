//! One broken plan for each rule, and the line that names it.

mod support;

use plimsoll_graph::{
    Activation, Builder, DType, Dependence, Graph, LowerOptions, OpKind, PhaseKind, RowSelect,
    Value,
};
use plimsoll_plan::{Plan, Region, Visit};
use support::naive::{self, Style};
use support::{graphs, verify};

/// A rule's name and a change that breaks it.
type Case<'a> = (&'a str, &'a dyn Fn(&mut Plan));

/// The line of each change to a plan of `skips`.
///
/// Ops of `skips`: 0 to 2 inputs, 3 wave and 4 table (hoisted), 5 in, 6 and 7 control.0, 8 to 10 down.0, 11 and
/// 12 control.1, 13 to 15 down.1, 16 to 18 up.0, 19 to 21 up.1, 22 and 23 out, 24 to 26 decoder. In slots:
/// a visit a block, ten units and loads, 34 copies and computes, entry `1 + 8 s + b` for block `b` of step `s`.
fn check(style: Style, cases: &[Case<'_>]) {
    let graph = graphs::skips(4, 1);
    let good = naive::plan(&graph, style);
    verify(&graph, &good).expect("a good plan");
    for (expected, change) in cases {
        let mut plan = good.clone();
        change(&mut plan);
        let line = match verify(&graph, &plan) {
            Ok(_) => panic!("accepted, expected: {expected}"),
            Err(violation) => violation.to_string(),
        };
        assert_eq!(&line, expected);
    }
}

#[test]
fn tables_and_indices() {
    check(
        Style::Slots(2),
        &[
            ("the plan is of version 3, this verifier knows 2", &|p| p.version = 3),
            ("the plan has 22 places of tensors, expected 23", &|p| _ = p.tensors.pop()),
            ("the plan has 28 workspaces, expected 27", &|p| p.workspaces.push(Region::default())),
            ("unit in.hoist/0 names block 99 of 10", &|p| p.units[0].block.0 = 99),
            ("unit in.hoist/0 names weight 99 of 14", &|p| p.units[0].weights[0].weight.0 = 99),
            ("load 0 names unit 99 of 10", &|p| p.loads[0].unit = 99),
            ("visit 0 names load 99 of 10", &|p| p.visits[0].loads.push(99)),
            ("copy 3 names load 99 of 10", &|p| p.copies[3].load = 99),
            ("compute 3 names visit 99 of 10", &|p| p.computes[3].visit = 99),
        ],
    );
}

#[test]
fn places() {
    check(
        Style::Slots(2),
        &[
            ("999 bytes beside the arena, 1000 are needed", &|p| p.reserved_bytes -= 1),
            ("the arena of 19200 bytes and 1000 beside it are over the line of 20199", &|p| {
                p.line_bytes -= 1;
            }),
            ("the arena of 19200 bytes and 1001 beside it are over the line of 20200", &|p| {
                p.reserved_bytes += 1;
            }),
            (
                "the arena of 19200 bytes and 18446744073709551615 beside it are over the line of 20200",
                &|p| p.reserved_bytes = u64::MAX,
            ),
            ("the arena's size at 19072 is not aligned to 256", &|p| p.arena_bytes -= 128),
            ("tensor in.table at 1025 is not aligned to 256", &|p| p.tensors[4].offset += 1),
            ("tensor in.table has 511 bytes, expected 512", &|p| p.tensors[4].bytes -= 1),
            ("tensor in.table: 512 bytes at 18944 are outside of the arena of 19200", &|p| {
                p.tensors[4].offset = 18944;
            }),
            (
                "tensor in.table: 512 bytes at 18446744073709551360 are outside of the arena of 19200",
                &|p| {
                    p.tensors[4].offset = u64::MAX - 255;
                },
            ),
            ("op table: a workspace of 95 bytes, 96 are needed", &|p| p.workspaces[4].bytes -= 1),
            ("workspace of op table at 513 is not aligned to 256", &|p| {
                p.workspaces[4].offset += 1
            }),
            ("unit in.hoist/0 holds weight unet.in.in.w, which is not of block in.hoist", &|p| {
                p.units[0].weights[0].weight.0 = 1;
            }),
            (
                "weight control.control.0.control.0.down in unit control.0/6 at 1025 is not aligned to 256",
                &|p| {
                    p.units[2].weights[1].offset += 1;
                },
            ),
            (
                "unit control.0/6: weight control.control.0.control.0.down at 768 begins before 1024",
                &|p| p.units[2].weights[1].offset -= 256,
            ),
            ("unit control.0/6 has 2047 bytes, expected 2048", &|p| p.units[2].bytes -= 1),
            ("load 2 of unit control.0/6 has 2047 bytes, expected 2048", &|p| {
                p.loads[2].region.bytes -= 1;
            }),
            (
                "load 2 of unit control.0/6: 2048 bytes at 17408 are outside of the arena of 19200",
                &|p| {
                    p.loads[2].region.offset = 17408;
                },
            ),
        ],
    );
}

#[test]
fn order() {
    let visit =
        |ops_start, ops_end, loads: &[u32]| Visit { ops_start, ops_end, loads: loads.into() };
    check(
        Style::Slots(2),
        &[
            ("visit 1 covers ops 6..6, expected to go on from 5", &|p| p.visits[1].ops_start = 6),
            ("visit 2 covers ops 6..6, expected to go on from 6", &|p| p.visits[2].ops_end = 6),
            ("visit 9 covers ops 24..28, expected to go on from 24", &|p| p.visits[9].ops_end = 28),
            ("visit 10 covers ops 27..27, expected to go on from 26", &|p| {
                p.visits[9].ops_end = 26
            }),
            ("the plan has 2 phases, expected 3", &|p| _ = p.phases.pop()),
            ("phase denoise: the name differs from the graph's", &|p| p.phases[1].name.clear()),
            ("phase denoise: the kind differs from the graph's", &|p| {
                p.phases[1].kind = PhaseKind::Hoist;
            }),
            ("phase denoise: the repeat differs from the graph's", &|p| p.phases[1].repeat = 3),
            ("phase denoise: the range of visits differs from the graph's", &|p| {
                p.phases[1].visits_start = 2;
            }),
            ("phase denoise: the range of ops differs from the graph's", &|p| {
                p.phases[1].visits_end = 8;
            }),
            ("phase decode: the range of visits differs from the graph's", &|p| {
                p.phases[2].visits_end = 11;
            }),
            ("phase decode: the range of visits differs from the graph's", &|p| {
                p.visits[9].ops_end = 26;
                p.visits.push(visit(26, 27, &[]));
                p.phases[2].visits_end = 9;
            }),
            ("compute 4 is visit 5 at step 0, expected visit 4 at step 0", &|p| {
                p.computes.swap(4, 5)
            }),
            ("compute 9 is visit 1 at step 0, expected visit 1 at step 1", &|p| {
                p.computes[9].step = 0
            }),
            ("the plan has 33 computes, expected 34", &|p| _ = p.computes.pop()),
            ("the plan has 35 computes, expected 34", &|p| p.computes.push(p.computes[33])),
            ("op in (visit 1) finds weight unet.in.in.w in 0 of the visit's loads", &|p| {
                p.visits[1].loads.clear();
            }),
            ("op in (visit 1) finds weight unet.in.in.w in 2 of the visit's loads", &|p| {
                p.visits[1].loads.push(1);
            }),
        ],
    );
}

#[test]
fn lanes() {
    check(
        Style::Slots(2),
        &[
            ("copy 4 waits for 35 of 34 entries of the compute lane", &|p| p.copies[4].after = 35),
            ("compute 4 waits for 35 of 34 entries of the copy lane", &|p| {
                p.computes[4].needs = 35
            }),
            // Compute 4 is what needs copy 4.
            (
                "copy 4 of unit control.1/11 waits for 5 computes, the last of which waits for 5 copies",
                &|p| {
                    p.copies[4].after = 5;
                },
            ),
            (
                "copy 6 of unit up.0/16 waits for 5 computes, the last of which waits for 7 copies",
                &|p| {
                    p.computes[4].needs = 7;
                },
            ),
            // The copy waits with the one before it.
            (
                "copy 3 of unit down.0/8 waits for 9 computes, the last of which waits for 9 copies",
                &|p| {
                    p.copies[3].after = 9;
                },
            ),
        ],
    );
}

#[test]
fn races() {
    check(
        Style::Slots(2),
        &[
            (
                "copy 4 of unit control.1/11 may run beside op up (compute 2, step 0), which touches byte \
                 2816 (load of unit control.0/6)",
                &|p| p.copies[4].after = 2,
            ),
            (
                "copy 12 of unit control.1/11 may run beside op up (compute 12, step 1), which touches byte \
                 2816 (load of unit control.1/11)",
                &|p| p.computes[12].needs = 3,
            ),
            (
                "copy 1 of unit in/5 may run beside op table (compute 0, step 0), which touches byte 1024 \
                 (tensor in.table)",
                &|p| p.loads[1].region.offset = 1280 - 256,
            ),
            (
                "copy 4 of unit control.1/11 may run beside op w (compute 3, step 0), which touches byte \
                 1792 (its workspace)",
                &|p| p.loads[4].region.offset = 1792,
            ),
        ],
    );
}

#[test]
fn operands() {
    check(
        Style::Apart,
        &[
            ("op wide: tensor in.noise and tensor decoder.wide share byte 0", &|p| {
                p.tensors[21].offset = p.tensors[0].offset;
            }),
            ("op wide: tensor in.noise and its workspace share byte 0", &|p| {
                p.workspaces[24].offset = p.tensors[0].offset;
            }),
            ("op wide: tensor decoder.wide and its workspace share byte 6912", &|p| {
                p.workspaces[24].offset = p.tensors[21].offset;
            }),
            ("op wide: weight vae.decoder.decoder.w and its workspace share byte 30464", &|p| {
                p.workspaces[24].offset = p.loads[9].region.offset;
            }),
            (
                "op wide: weight vae.decoder.decoder.w and tensor decoder.wide share byte 30464",
                &|p| {
                    p.tensors[21].offset = p.loads[9].region.offset;
                },
            ),
        ],
    );
}

#[test]
fn contents() {
    check(
        Style::Apart,
        &[
            (
                "op euler at step 0 reads tensor in.noise, whose byte 0 holds columns 0b1 of tensor up.1.next",
                &|p| p.tensors[19].offset = p.tensors[0].offset,
            ),
            (
                "op norm at step 0 reads tensor down.0.hint, whose byte 2816 holds scratch of op down",
                &|p| p.workspaces[12].offset = p.tensors[10].offset,
            ),
        ],
    );
    check(
        Style::Slots(2),
        &[(
            "op up at step 0 reads weight control.control.0.control.0.up, whose byte 2816 holds load 0 \
                 of unit in.hoist/0",
            &|p| {
                _ = p.copies.remove(2);
                p.computes.iter_mut().skip(2).for_each(|compute| compute.needs -= 1);
            },
        )],
    );
}

#[test]
fn uses_and_figures() {
    check(
        Style::Slots(2),
        &[
            ("copy 34 of unit decoder/24 is overwritten or left without a use", &|p| {
                p.copies.push(plimsoll_plan::CopyEntry { after: 34, ..p.copies[33] });
            }),
            (
                "copy 9 of unit in/5 is accounted to outside of the loop, first used at step 1",
                &|p| {
                    p.copies[9].step = None;
                },
            ),
            (
                "copy 33 of unit decoder/24 is accounted to at step 3, first used outside of the loop",
                &|p| {
                    p.copies[33].step = Some(3);
                },
            ),
            ("the resident load 1 of unit in/5 is copied 4 times", &|p| {
                p.loads[1].is_resident = true
            }),
            ("predicted VRAM peak in bytes is 13055, the plan gives 13056", &|p| {
                p.predicted.vram_peak_bytes -= 1;
            }),
            ("predicted VRAM of the process in bytes is 20199, the plan gives 20200", &|p| {
                p.predicted.vram_process_bytes -= 1;
            }),
            ("predicted bytes copied per step is 17535, the plan gives 17536", &|p| {
                p.predicted.copied_bytes_per_step -= 1;
            }),
            ("predicted bytes copied is 73215, the plan gives 73216", &|p| {
                p.predicted.copied_bytes -= 1
            }),
        ],
    );
}

#[test]
fn steady_steps() {
    // Each of these plans would run right; but its step could not be replayed.
    check(
        Style::Slots(2),
        &[
            ("step 2 differs from the one before it: what is waited for by copy 3", &|p| {
                p.copies[20].after += 1;
            }),
            ("step 2 differs from the one before it: what is waited for by compute 2", &|p| {
                p.computes[19].needs += 1;
            }),
            ("step 2 differs from the one before it: the load of copy 2", &|p| {
                p.copies.swap(19, 20);
                p.computes[19].needs += 1;
            }),
            (
                "step 2 differs from the one before it: the distance in the copy lane of copy 3",
                &|p| {
                    // The decoder has a place of its own and is fetched in the middle of a step.
                    p.loads[9].region.offset = p.arena_bytes;
                    (p.arena_bytes, p.line_bytes) = (p.arena_bytes + 2048, p.line_bytes + 2048);
                    let decoder = p.copies.remove(33);
                    p.copies.insert(20, plimsoll_plan::CopyEntry { after: 0, ..decoder });
                    p.computes[20..33].iter_mut().for_each(|compute| compute.needs += 1);
                },
            ),
        ],
    );
    check(
        Style::Mixed(1),
        &[("step 2 differs from the one before it: the number of copies 1", &|p| {
            // A resident block is fetched anew for step 2, between its uses in steps 1 and 2.
            let at = p.copies.iter().position(|copy| copy.load == 0).unwrap();
            assert_eq!(p.units[p.loads[0].unit as usize].name, "in/5");
            p.loads[0].is_resident = false;
            let again = plimsoll_plan::CopyEntry { step: Some(2), after: 10, ..p.copies[at] };
            p.copies.insert(9, again);
            p.computes[17..].iter_mut().for_each(|compute| compute.needs = compute.needs.max(10));
            p.computes[33].needs = 11;
        })],
    );
}

/// `x` and `y` `[2, 8]`, an op made by `make`, its result.
fn one_op(dtype: DType, make: &dyn Fn(&mut Builder<'_>, Value, Value) -> Value) -> Graph {
    let wide = |_: &str, _: &str| DType::F32;
    let mut b = Builder::new(dtype, &wide);
    let component = b.component("net");
    b.phase(PhaseKind::Encode, "encode");
    b.block(component, "block");
    let x = b.input("x", 2, 8, DType::F32, Dependence::Run);
    let y = b.input("y", 2, 8, DType::F32, Dependence::Run);
    let out = make(&mut b, x, y);
    b.output("out", out);
    b.finish(&LowerOptions { steps: 1, samples: 1, hoist: true }).expect("one op")
}

/// Puts the result (tensor 2) where operand `operand` is; the complaint, if there is one.
fn in_place(graph: &Graph, operand: usize) -> Option<String> {
    let mut plan = naive::plan(graph, Style::Apart);
    verify(graph, &plan).expect("a good plan");
    plan.tensors[2].offset = plan.tensors[operand].offset;
    naive::predict(graph, &mut plan);
    verify(graph, &plan).err().map(|violation| violation.to_string())
}

#[test]
fn results_in_the_place_of_an_operand() {
    fn weight(b: &mut Builder<'_>, rows: u64) -> plimsoll_graph::WeightId {
        b.weight("w", &[("w".to_owned(), vec![rows, 8])])
    }
    let none = Activation::None;
    let add = one_op(DType::F32, &|b, x, y| b.add("op", x, y));
    let add_weight = one_op(DType::F32, &|b, x, _| {
        let w = weight(b, 2);
        b.add_weight("op", x, w)
    });
    let activate = one_op(DType::F32, &|b, x, _| b.activate("op", x, Activation::Silu));
    let norm = one_op(DType::F32, &|b, x, y| {
        b.modulated_norm("op", x, y.slice_rows(0, 1), y.slice_rows(1, 1))
    });
    let linear = one_op(DType::F32, &|b, x, _| {
        let w = weight(b, 8);
        b.linear("op", x, w, None, none)
    });
    let residual = one_op(DType::F32, &|b, x, y| {
        let w = weight(b, 8);
        let out = b.buffer("out", 2, 8, DType::F32, Dependence::Run);
        let base = plimsoll_graph::Residual { base: y, gate: None };
        b.linear_into("op", x, w, None, none, Some(base), out);
        out
    });
    let copy = one_op(DType::F32, &|b, x, _| {
        let out = b.buffer("out", 2, 8, DType::F32, Dependence::Run);
        b.copy("op", x, out);
        out
    });
    for (graph, operand) in
        [(&add, 0), (&add_weight, 0), (&activate, 0), (&norm, 0), (&residual, 1)]
    {
        assert_eq!(in_place(graph, operand), None, "{:?}", graph.ops[2]);
    }
    let share = |operand: &str, offset: u64| {
        Some(format!("op op: tensor block.{operand} and tensor block.out share byte {offset}"))
    };
    assert_eq!(in_place(&residual, 0), share("x", 0));
    assert_eq!(in_place(&copy, 0), share("x", 0));
    for (graph, operand) in [(&add, 1), (&norm, 1), (&linear, 0)] {
        let line = in_place(graph, operand).expect("not in place");
        assert!(line.contains("share byte"), "{line}");
    }
    // Elements of two bytes in the place of elements of four.
    let narrow = one_op(DType::BF16, &|b, x, _| b.activate("op", x, Activation::Silu));
    assert_eq!(
        in_place(&narrow, 0),
        Some("op op: tensor block.x and tensor block.op share byte 0".into())
    );
}

/// Pixels of a picture of one column, 8 channels.
fn convolution_weights(b: &mut Builder<'_>, out: u64) -> [plimsoll_graph::WeightId; 2] {
    let weight = b.weight("w", &[("w".to_owned(), vec![out, 8, 3, 3])]);
    [weight, b.weight("bias", &[("bias".to_owned(), vec![out])])]
}

#[test]
fn a_convolution_goes_over_what_it_is_added_to_and_not_over_what_it_reads() {
    let added = one_op(DType::F32, &|b, x, y| {
        let weights = convolution_weights(b, 8);
        let out = b.buffer("out", 2, 8, DType::F32, Dependence::Run);
        b.conv3x3_into("op", x, [2, 1], 1, weights, Some(y), out);
        out
    });
    assert_eq!(in_place(&added, 1), None);
    assert!(in_place(&added, 0).is_some_and(|line| line.contains("share byte")));
}

#[test]
fn bands_of_a_convolution_need_the_headroom_of_a_band_and_a_row() {
    // Eight rows in bands of two, each into the left half of rows above the ones that it reads.
    let bands = |headroom: u64| {
        one_op(DType::F32, &|b, x, _| {
            let room = b.buffer("room", headroom + 8, 8, DType::F32, Dependence::Run);
            let picture = room.slice_rows(headroom, 8);
            for at in 0..4 {
                b.copy(&format!("fill.{at}"), x, picture.slice_rows(2 * at, 2));
            }
            let weights = convolution_weights(b, 4);
            for at in 0..4 {
                let rows = 2 * at..2 * at + 2;
                let out = room.slice_rows(2 * at, 2).slice_cols(0, 4);
                b.conv3x3_band(&format!("band.{at}"), picture, [8, 1], rows, weights, out);
            }
            room.slice_rows(0, 8).slice_cols(0, 4)
        })
    };
    let enough = bands(3);
    verify(&enough, &naive::plan(&enough, Style::Slots(1))).expect("three rows above");
    let short = bands(2);
    let plan = naive::plan(&short, Style::Slots(1));
    let line = verify(&short, &plan).map(|_| ()).expect_err("a row short").to_string();
    assert!(line.starts_with("op band.1: tensor block.room and tensor block.room share"), "{line}");
}

#[test]
fn columns_are_told_apart() {
    // A `[2, 8]` buffer of which the op's result is the left half; the right half is never written.
    let half = |right: bool| {
        one_op(DType::F32, &|b, x, y| {
            let out = b.buffer("out", 2, 16, DType::F32, Dependence::Run);
            b.copy("left", x, out.slice_cols(0, 8));
            b.copy("right", y, out.slice_cols(if right { 8 } else { 4 }, 8));
            out
        })
    };
    let whole = half(true);
    verify(&whole, &naive::plan(&whole, Style::Slots(1))).expect("both halves are written");
    let graph = half(false);
    let plan = naive::plan(&graph, Style::Slots(1));
    let line = verify(&graph, &plan).map(|_| ()).expect_err("columns 12 to 15").to_string();
    assert_eq!(
        line,
        "op out at step 0 reads tensor block.out, whose byte 512 holds columns 0b111 of tensor block.out"
    );
}

#[test]
fn a_mask_has_sixty_four_bands() {
    let bands = |count: u64| {
        one_op(DType::F32, &|b, x, _| {
            let out = b.buffer("out", 2, count, DType::F32, Dependence::Run);
            for col in 0..count {
                b.copy(&format!("{col}"), x.slice_cols(0, 1), out.slice_cols(col, 1));
            }
            out
        })
    };
    let most = bands(64);
    verify(&most, &naive::plan(&most, Style::Apart)).expect("64 bands");
    let graph = bands(65);
    let line =
        verify(&graph, &naive::plan(&graph, Style::Apart)).map(|_| ()).expect_err("65 bands");
    assert_eq!(
        line.to_string(),
        "tensor block.out is used in 65 bands of columns, at most 64 can be proved"
    );
}

#[test]
fn a_graph_that_is_none() {
    let mut graph = graphs::skips(2, 1);
    let plan = naive::plan(&graph, Style::Apart);
    let OpKind::Copy { x, .. } = &mut graph.ops[16].kind else { panic!("op 16 is a copy") };
    x.row = RowSelect::At(1);
    let line = verify(&graph, &plan).map(|_| ()).expect_err("a view outside").to_string();
    assert_eq!(line, "the graph: op copy left: a view outside of tensor down.1.hint");
}
