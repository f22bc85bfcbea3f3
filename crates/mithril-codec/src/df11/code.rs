//! The Huffman code of a run of exponents, with the ties broken as readers and writers of DF11 do.
//!
//! Every exponent that occurs is a leaf weighted by its count, and the end symbol a leaf of weight 1. The two lightest
//! nodes are joined until one is left; of two equal weights the one with the smaller first leaf is lighter, and the end
//! symbol is smaller than any exponent. First leaves are all different, so this order is total. The lighter node goes
//! to the 0 side and gives the joined node its first leaf. A leaf's code is its path from the root.

use super::LONGEST_CODE;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The end symbol as a leaf: smaller than every exponent.
const END: i16 = -1;

/// The codes of all symbols. A length of 0 means that the symbol does not occur.
#[derive(Debug, Clone)]
pub(super) struct Code {
    /// Codes of exponents; the last bit is the least significant.
    pub(super) codes: [u32; 256],
    pub(super) lengths: [u8; 256],
    /// Code and length of the end symbol.
    pub(super) end: (u32, u8),
}

/// A node of the tree: a leaf's symbol, or two nodes.
enum Node {
    Leaf(i16),
    Pair(usize, usize),
}

impl Code {
    /// The code for these counts, of which one at least is not zero.
    pub(super) fn from_counts(counts: &[u64; 256]) -> Self {
        if let Some(code) = Self::unlimited(counts) {
            return code;
        }
        // Too long a code: the smallest counts become 1, two of them, then three, until the code fits. Which of several
        // equal counts is taken last is not fixed by the format; here it is the smaller exponent.
        let mut by_count: Vec<usize> = (0..256).filter(|&symbol| counts[symbol] > 0).collect();
        by_count.sort_by_key(|&symbol| counts[symbol]);
        let mut flattened = *counts;
        for (n_flattened, &symbol) in (1..).zip(&by_count) {
            flattened[symbol] = 1;
            if n_flattened >= 2
                && let Some(code) = Self::unlimited(&flattened)
            {
                return code;
            }
        }
        unreachable!("257 equal counts have codes of at most 9 bits")
    }

    /// The code for these counts, or nothing if a symbol gets more than 32 bits.
    fn unlimited(counts: &[u64; 256]) -> Option<Self> {
        let mut nodes = vec![Node::Leaf(END)];
        let mut heap = BinaryHeap::from([Reverse((1u128, END, 0usize))]);
        for (symbol, &count) in (0i16..).zip(counts) {
            if count > 0 {
                heap.push(Reverse((u128::from(count), symbol, nodes.len())));
                nodes.push(Node::Leaf(symbol));
            }
        }
        while let (Some(Reverse((weight_a, first, a))), Some(Reverse((weight_b, _, b)))) =
            (heap.pop(), heap.pop())
        {
            heap.push(Reverse((weight_a + weight_b, first, nodes.len())));
            nodes.push(Node::Pair(a, b));
        }
        let mut code = Self { codes: [0; 256], lengths: [0; 256], end: (0, 0) };
        let mut open = vec![(nodes.len() - 1, 0u32, 0u8)];
        while let Some((node, bits, length)) = open.pop() {
            match nodes[node] {
                Node::Leaf(symbol) => match usize::try_from(symbol) {
                    Ok(symbol) => {
                        code.codes[symbol] = bits;
                        code.lengths[symbol] = length;
                    }
                    Err(_) => code.end = (bits, length),
                },
                Node::Pair(..) if length == LONGEST_CODE => return None,
                Node::Pair(a, b) => open.extend([(a, bits << 1, length + 1), (b, bits << 1 | 1, length + 1)]),
            }
        }
        Some(code)
    }
}
