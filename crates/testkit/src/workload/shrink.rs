//! Makes a failing list of operations shorter.

/// The shortest list found, by leaving out ever smaller runs of operations, for which `fails` still holds.
pub fn shrink<T: Clone>(mut ops: Vec<T>, fails: &mut dyn FnMut(&[T]) -> bool) -> Vec<T> {
    let mut run = ops.len() / 2;
    while run > 0 {
        let mut at = 0;
        let mut shorter = false;
        while at < ops.len() {
            let mut candidate = ops.clone();
            candidate.drain(at..ops.len().min(at + run));
            if fails(&candidate) {
                ops = candidate;
                shorter = true;
            } else {
                at += run;
            }
        }
        if !shorter || run > 1 {
            run /= 2;
        }
    }
    ops
}
