//! `--require`: a host accepts only one pipeline.

use crate::error::PipelineError;
use crate::parsed::{Origin, PairUse, Pipeline};
use contract::Pair;

/// The required pipeline. Proposals are compared by canonical text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    own: Pipeline,
}

impl Requirement {
    /// Requires `own`. This host runs it with the links and local options of `own`.
    pub fn new(own: Pipeline) -> Self {
        Requirement { own }
    }

    /// Parses a peer's proposal. Returns this host's own pipeline if they are equal. Errors point at
    /// the first pair that differs.
    pub fn accept(
        &self,
        proposal: &str,
        table: &'static [&'static dyn Pair],
    ) -> Result<Pipeline, PipelineError> {
        let own = self.own.pairs();
        let proposed = Pipeline::parse(proposal, table, Origin::Peer)?;
        if proposed == self.own {
            return Ok(self.own.clone());
        }
        let same = |(a, b): &(&PairUse, &PairUse)| a.canonical() == b.canonical();
        let equal = proposed.pairs().iter().zip(own).take_while(same).count();
        let place =
            proposed.pairs().get(equal).map_or(proposal.len()..proposal.len(), |used| used.place.clone());
        let problem = match self.own.canonical() {
            "" => "this host requires a flow without any pair".into(),
            required => format!("this host requires exactly `{required}`"),
        };
        Err(PipelineError::new(proposal, place, problem))
    }
}
