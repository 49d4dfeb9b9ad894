//! The anchor grid of a period: the instants `anchor + k * period`, for every whole number k.
//!
//! All answers are arithmetic; none of them walks over the grid. Bounds are the caller's.

/// The grid of a period.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    /// Nanoseconds since the Unix epoch.
    pub(crate) anchor: i128,
    /// Nanoseconds, above 0.
    pub(crate) period: i128,
}

impl Grid {
    /// The first instant of the grid after `t`.
    pub(crate) fn next(self, t: i128) -> i128 {
        self.anchor + ((t - self.anchor).div_euclid(self.period) + 1) * self.period
    }

    /// The last instant of the grid before `t`.
    pub(crate) fn previous(self, t: i128) -> i128 {
        self.next(t - 1) - self.period
    }

    /// The number of instants after `after` and up to `until`.
    pub(crate) fn count(self, after: i128, until: i128) -> u64 {
        let index = |t: i128| (t - self.anchor).div_euclid(self.period);
        u64::try_from((index(until) - index(after)).max(0)).unwrap_or(u64::MAX)
    }

    /// The instant with this index. `None`: it is beyond every `SystemTime`.
    pub(crate) fn nth(self, index: u64) -> Option<i128> {
        self.period.checked_mul(i128::from(index))?.checked_add(self.anchor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_and_previous_are_strict_on_both_sides_of_the_anchor() {
        let grid = Grid { anchor: 3, period: 10 };
        for (t, previous, next) in [(3, -7, 13), (4, 3, 13), (2, -7, 3), (-7, -17, 3), (-8, -17, -7), (13, 3, 23)] {
            assert_eq!((grid.previous(t), grid.next(t)), (previous, next), "{t}");
        }
    }

    #[test]
    fn counts_exclude_the_start_and_include_the_end() {
        let grid = Grid { anchor: 3, period: 10 };
        assert_eq!(grid.count(3, 13), 1);
        assert_eq!(grid.count(2, 13), 2);
        assert_eq!(grid.count(-100, 2), 10);
        assert_eq!(grid.count(13, 3), 0);
    }

    #[test]
    fn the_widest_numbers_do_not_overflow() {
        let most = crate::instant::duration_nanos(std::time::Duration::MAX);
        for (anchor, period, t) in [(most, most, -most), (-most, most, most), (most, 1, -most), (-most, 1, most)] {
            let grid = Grid { anchor, period };
            assert!(grid.previous(t) < t && t < grid.next(t));
            grid.count(-most, most);
        }
        assert_eq!(Grid { anchor: 0, period: most }.nth(u64::MAX), None);
    }
}
