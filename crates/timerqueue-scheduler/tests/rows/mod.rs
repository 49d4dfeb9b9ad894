//! The rows of the hand-made systems that a scheduler replaces, on virtual time.
//!
//! Ground rules. `a1_...` to `d16_...` show that the scheduler has the feature, or not the defect,
//! of that row. A and B are time wheels for delayed tasks, C is a cron scheduler with a heap and a
//! wheel, D is a ring for delay messages. The numbers in the tests are those with which these
//! systems fail.

mod a;
mod b;
mod c;
mod d;
mod nodes;
