//! Places with numbers, which are used again.
//!
//! Ground rules. Pure. A number names a place, not what stands in it: whoever may come late with an old one must know by other
//! means whether it is still his.

/// No place.
pub(super) const NONE: u32 = u32::MAX;

pub(super) struct Slab<T> {
    places: Vec<Place<T>>,
    /// The first free place; [`NONE`] if all are taken.
    free: u32,
}

enum Place<T> {
    Taken(T),
    Free { next: u32 },
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { places: Vec::new(), free: NONE }
    }

    /// Where it stands now.
    pub(super) fn insert(&mut self, value: T) -> u32 {
        match self.places.get_mut(self.free as usize) {
            Some(place) => {
                let index = self.free;
                if let Place::Free { next } = std::mem::replace(place, Place::Taken(value)) {
                    self.free = next;
                }
                index
            }
            None => {
                self.places.push(Place::Taken(value));
                (self.places.len() - 1) as u32
            }
        }
    }

    pub(super) fn get(&self, index: u32) -> Option<&T> {
        match self.places.get(index as usize) {
            Some(Place::Taken(value)) => Some(value),
            _ => None,
        }
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match self.places.get_mut(index as usize) {
            Some(Place::Taken(value)) => Some(value),
            _ => None,
        }
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let place = self.places.get_mut(index as usize)?;
        match std::mem::replace(place, Place::Free { next: self.free }) {
            Place::Taken(value) => {
                self.free = index;
                Some(value)
            }
            free => {
                *place = free;
                None
            }
        }
    }

    /// What stands in it, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.places).filter_map(|(index, place)| match place {
            Place::Taken(value) => Some((index, value)),
            Place::Free { .. } => None,
        })
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|place| match place {
            Place::Taken(value) => Some(value),
            Place::Free { .. } => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_free_ones_are_empty() {
        let mut slab = Slab::new();
        assert_eq!(["a", "b", "c"].map(|name| slab.insert(name)), [0, 1, 2]);
        assert_eq!(
            (slab.remove(1), slab.remove(0), slab.remove(1), slab.remove(9)),
            (Some("b"), Some("a"), None, None)
        );
        assert_eq!((slab.get(0), slab.get(2), slab.get(NONE)), (None, Some(&"c"), None));
        assert!(slab.get_mut(1).is_none());
        assert_eq!(["d", "e", "f"].map(|name| slab.insert(name)), [0, 1, 3], "the last that was freed first");
        slab.values_mut().for_each(|name| *name = &name[..0]);
        *slab.get_mut(3).expect("taken") = "g";
        assert_eq!(slab.iter().collect::<Vec<_>>(), [(0, &""), (1, &""), (2, &""), (3, &"g")]);
    }
}
