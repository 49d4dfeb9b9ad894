//! The rows of the hand-made systems that a scheduler replaces, on virtual time.
//!
//! Ground rules. `a1_...` to `d16_...` show that the scheduler has the feature, or not the defect,
//! of that row. A and B are time wheels for delayed tasks, C is a cron scheduler with a heap and a
//! wheel, D is a ring for delay messages. The numbers in the tests are those with which these
//! systems fail.

#[path = "support/bench.rs"]
mod bench;
#[path = "support/members.rs"]
mod members;

#[path = "rows/a.rs"]
mod a;
#[path = "rows/b.rs"]
mod b;
#[path = "rows/c.rs"]
mod c;
#[path = "rows/d.rs"]
mod d;
#[path = "rows/nodes.rs"]
mod nodes;
