//! Places of runs that end, which go to the next jobs in the same commit.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::store::{Claim, ClaimedJob};

/// One claim for each scheduler, for all of its places.
pub(crate) fn merged<'c>(places: impl Iterator<Item = &'c Claim>) -> Vec<Claim> {
    let mut claims: Vec<Claim> = Vec::new();
    for place in places {
        let Some(claim) = claims.iter_mut().find(|claim| claim.owner == place.owner) else {
            claims.push(place.clone());
            continue;
        };
        claim.at_most += place.at_most;
        for room in &place.rooms {
            match claim.rooms.iter_mut().find(|known| known.name == room.name) {
                Some(known) => known.places += room.places,
                None => claim.rooms.push(room.clone()),
            }
        }
    }
    claims
}

/// Jobs, by scheduler and handler: the first one gets the first place.
#[derive(Debug, Default)]
pub(crate) struct Dealer(HashMap<(u64, Arc<str>), VecDeque<ClaimedJob>>);

impl Dealer {
    pub(crate) fn add(&mut self, jobs: Vec<ClaimedJob>) {
        for job in jobs {
            self.0.entry((job.held.owner, Arc::clone(&job.name))).or_default().push_back(job);
        }
    }

    pub(crate) fn next(&mut self, place: &Claim) -> Option<ClaimedJob> {
        place.rooms.iter().find_map(|room| self.0.get_mut(&(place.owner, Arc::clone(&room.name)))?.pop_front())
    }
}
