//! Net changes of the references to one extent: a list while they are few, as nearly always; sorted maps when they are
//! many, as of a block that a file has thousands of times.

use super::refs::RefBy;
use std::collections::BTreeMap;

/// How many a list may hold.
const FEW: usize = 16;

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Changes {
    few: Vec<(RefBy, i64)>,
    many: Option<Box<Many>>,
    net: i64,
}

#[derive(Clone, Debug, Default)]
struct Many {
    gains: BTreeMap<RefBy, i64>,
    losses: BTreeMap<RefBy, i64>,
}

impl Many {
    fn change(&mut self, by: RefBy, count: i64) {
        let before = self.gains.remove(&by).or_else(|| self.losses.remove(&by)).unwrap_or(0);
        match before + count {
            0 => {}
            gain @ 1.. => drop(self.gains.insert(by, gain)),
            loss => drop(self.losses.insert(by, loss)),
        }
    }
}

impl Changes {
    /// Sum of all.
    pub fn net(&self) -> i64 {
        self.net
    }

    /// The number of references that change.
    pub fn len(&self) -> usize {
        self.few.len() + self.many.as_ref().map_or(0, |many| many.gains.len() + many.losses.len())
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (RefBy, i64)> + '_ {
        let many = self.many.iter().flat_map(|many| many.gains.iter().chain(&many.losses));
        self.few.iter().copied().chain(many.map(|(by, count)| (*by, *count)))
    }

    /// The change of one reference.
    pub fn of(&self, by: &RefBy) -> i64 {
        let few = self.few.iter().find(|(existing, _)| existing == by).map(|(_, count)| *count);
        let many = || self.many.as_ref().and_then(|many| many.gains.get(by).or_else(|| many.losses.get(by)).copied());
        few.or_else(many).unwrap_or(0)
    }

    /// Whether no reference but `by` changes.
    pub fn is_only(&self, by: RefBy) -> bool {
        self.len() < 2 && self.iter().all(|(other, _)| other == by)
    }

    /// Adds `count` to the change of `by`.
    pub fn change(&mut self, by: RefBy, count: i64) {
        self.net += count;
        if let Some(many) = &mut self.many {
            return many.change(by, count);
        }
        match self.few.iter().position(|(existing, _)| *existing == by) {
            Some(index) => {
                self.few[index].1 += count;
                if self.few[index].1 == 0 {
                    self.few.remove(index);
                }
            }
            None => self.few.push((by, count)),
        }
        if self.few.len() > FEW {
            let many = self.many.get_or_insert_default();
            self.few.drain(..).for_each(|(by, count)| many.change(by, count));
        }
    }

    /// Takes `most` of them out, additions first.
    pub fn split_off(&mut self, most: usize) -> Changes {
        let mut taken = Changes::default();
        let mut take = |(by, count)| taken.change(by, count);
        let before = self.net;
        for _ in 0..most {
            let next = match &mut self.many {
                Some(many) => many.gains.pop_first().or_else(|| many.losses.pop_first()),
                None => {
                    let gain = self.few.iter().position(|(_, count)| *count > 0);
                    let next = gain.or_else(|| self.few.len().checked_sub(1));
                    next.map(|index| self.few.swap_remove(index))
                }
            };
            let Some(next) = next else { break };
            take(next);
        }
        self.net = before - taken.net;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_ondisk::Logical;

    /// Beside a plain map: random changes of few and of many references, and parts taken out.
    #[test]
    fn changes_are_those_of_a_map() {
        let mut rng = butterfs_testkit::rng::Rng::new(7);
        let mut random = move |below: u64| rng.below(below);
        for references in [3, 16, 17, 200] {
            let (mut changes, mut model) = (Changes::default(), BTreeMap::<RefBy, i64>::new());
            for _ in 0..5000 {
                let by = RefBy::Leaf(Logical(random(references)));
                let count = if random(2) == 0 { 1 } else { -1 };
                changes.change(by, count);
                *model.entry(by).or_default() += count;
                model.retain(|_, count| *count != 0);
                if random(500) == 0 {
                    let gains = model.values().filter(|count| **count > 0).count();
                    let taken = changes.split_off(random(references) as usize);
                    let losses = taken.iter().filter(|(_, count)| *count < 0).count();
                    assert!(losses == 0 || taken.len() - losses == gains, "{losses} losses before {gains} gains");
                    taken.iter().for_each(|(by, count)| assert_eq!(model.remove(&by), Some(count)));
                    assert_eq!(taken.net(), taken.iter().map(|(_, count)| count).sum::<i64>());
                }
                assert_eq!(changes.len(), model.len());
                assert_eq!(changes.net(), model.values().sum::<i64>());
            }
            assert_eq!(changes.iter().collect::<BTreeMap<_, _>>(), model);
        }
    }
}
