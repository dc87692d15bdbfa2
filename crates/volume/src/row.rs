//! The known content of a row with parity at some depths, and the conclusions.
//!
//! Pure: no devices here.

use crate::parity;

/// The elements of a row: its data columns, then P, then Q.
#[derive(Clone)]
pub(crate) struct Row {
    columns: usize,
    elements: Vec<Element>,
}

#[derive(Clone)]
struct Element {
    bytes: Vec<u8>,
    is_known: bool,
}

/// The state of a row after [`Row::complete`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// All elements are known, and those that were known fit each other.
    Consistent,
    /// All data is known, but a parity that was known does not fit it. It is as it was.
    Inconsistent,
    /// More is unknown than parity can make up for.
    Lost,
}

impl Row {
    /// A row of which nothing is known.
    pub fn unknown(columns: usize, parity: usize, len: usize) -> Row {
        let element = || Element { bytes: vec![0; len], is_known: false };
        Row { columns, elements: (0..columns + parity).map(|_| element()).collect() }
    }

    /// Fills an element by `read`, which says whether it could.
    pub fn fill(&mut self, element: usize, read: impl FnOnce(&mut [u8]) -> bool) {
        let element = &mut self.elements[element];
        element.is_known = read(&mut element.bytes);
    }

    /// From now on nothing is known of an element.
    pub fn forget(&mut self, element: usize) {
        self.elements[element].is_known = false;
    }

    /// The bytes of an element; meaningless where it is not known.
    pub fn element(&self, element: usize) -> &[u8] {
        &self.elements[element].bytes
    }

    /// Whether an element is known.
    pub fn is_known(&self, element: usize) -> bool {
        self.elements[element].is_known
    }

    /// The parity elements.
    pub fn parities(&self) -> std::ops::Range<usize> {
        self.columns..self.elements.len()
    }

    /// Computes what is unknown from what is known, and compares the rest.
    pub fn complete(&mut self) -> State {
        let unknown: Vec<usize> = (0..self.columns).filter(|&column| !self.is_known(column)).collect();
        let parities: Vec<usize> = self.parities().filter(|&parity| self.is_known(parity)).collect();
        if unknown.len() > parities.len() {
            return State::Lost;
        }
        match (unknown.as_slice(), parities[..].first()) {
            ([], _) => {}
            ([x], Some(&parity)) => self.solve_one(*x, parity),
            ([x, y], _) => self.solve_two(*x, *y),
            _ => return State::Lost,
        }
        let own: Vec<Vec<u8>> = self.parities().map(|parity| self.element(parity).to_vec()).collect();
        let known: Vec<bool> = self.parities().map(|parity| self.is_known(parity)).collect();
        self.update_parity();
        let differs = self
            .parities()
            .zip(own.iter().zip(&known))
            .any(|(parity, (own, is_known))| *is_known && self.element(parity) != own.as_slice());
        if differs {
            let parities = self.columns..self.elements.len();
            self.elements[parities].iter_mut().zip(own).for_each(|(element, own)| element.bytes = own);
            return State::Inconsistent;
        }
        State::Consistent
    }

    /// Makes the parity that of the data.
    pub fn update_parity(&mut self) {
        let (data, parity) = self.elements.split_at_mut(self.columns);
        let columns: Vec<&[u8]> = data.iter().map(|element| element.bytes.as_slice()).collect();
        let (p, q) = parity.split_first_mut().expect("a row has parity");
        parity::compute(&columns, &mut p.bytes, q.first_mut().map(|q| q.bytes.as_mut_slice()));
        parity.iter_mut().for_each(|element| element.is_known = true);
    }

    /// Computes one column from a parity and the other columns.
    fn solve_one(&mut self, column: usize, parity: usize) {
        let others = (0..self.columns).filter(|&other| other != column);
        let mut sum = self.element(parity).to_vec();
        let is_p = parity == self.columns;
        for other in others {
            match is_p {
                true => parity::add(&mut sum, self.element(other)),
                false => parity::add_scaled(&mut sum, self.element(other), other),
            }
        }
        let element = &mut self.elements[column];
        element.is_known = true;
        match is_p {
            true => element.bytes = sum,
            false => parity::from_q(&sum, column, &mut element.bytes),
        }
    }

    /// Computes two columns from both parities and the other columns.
    fn solve_two(&mut self, x: usize, y: usize) {
        let (mut p, mut q) = (self.element(self.columns).to_vec(), self.element(self.columns + 1).to_vec());
        for other in (0..self.columns).filter(|other| ![x, y].contains(other)) {
            parity::add(&mut p, self.element(other));
            parity::add_scaled(&mut q, self.element(other), other);
        }
        parity::from_both(&p, &q, x, y, &mut self.elements[x].bytes);
        self.elements[x].is_known = true;
        parity::add(&mut p, self.element(x));
        let element = &mut self.elements[y];
        (element.bytes, element.is_known) = (p, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(columns: usize, parity: usize) -> Row {
        let mut row = Row::unknown(columns, parity, 64);
        for column in 0..columns {
            row.fill(column, |bytes| {
                bytes
                    .iter_mut()
                    .enumerate()
                    .for_each(|(i, byte)| *byte = (i * 7 + column * 31 + column * column) as u8);
                true
            });
        }
        row.update_parity();
        row
    }

    #[test]
    fn unknown_elements_are_rebuilt_as_far_as_parity_goes() {
        for (columns, parity) in [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (5, 2)] {
            let whole = row(columns, parity);
            for x in 0..columns + parity {
                for y in 0..columns + parity {
                    let mut row = whole.clone();
                    [x, y].into_iter().for_each(|unknown| {
                        row.forget(unknown);
                        row.elements[unknown].bytes.fill(0xee);
                    });
                    let lost = if x == y { 1 } else { 2 };
                    let expected = if lost <= parity { State::Consistent } else { State::Lost };
                    assert_eq!(row.complete(), expected, "{columns}+{parity} without {x} and {y}");
                    let is_equal = (0..columns + parity).all(|at| row.element(at) == whole.element(at));
                    assert_eq!(is_equal, expected == State::Consistent, "{columns}+{parity} without {x} and {y}");
                }
            }
        }
    }

    #[test]
    fn contradictions_are_seen_while_parity_is_left() {
        for (columns, parity) in [(2, 1), (3, 2)] {
            for bad in 0..columns + parity {
                for unknown in (0..columns + parity).filter(|&unknown| unknown != bad) {
                    let mut row = row(columns, parity);
                    row.elements[bad].bytes[5] ^= 1;
                    assert_eq!(row.clone().complete(), State::Inconsistent);
                    row.forget(unknown);
                    let expected = if parity > 1 { State::Inconsistent } else { State::Consistent };
                    assert_eq!(row.complete(), expected, "{columns}+{parity}: {bad} bad, {unknown} unknown");
                }
            }
        }
    }
}
