//! `profile list`, `show`, `apply` and `release`.

use super::Context;
use crate::cli::Profile;
use crate::failure::Failure;
use crate::format;

pub async fn run(context: &Context, command: Profile) -> Result<(), Failure> {
    let client = context.connect().await?;
    match command {
        Profile::List => context.show(&client.profiles().await?, format::profiles),
        Profile::Show => context.show(&client.profiles().await?, format::clocks),
        Profile::Apply { name } => context.show(&client.apply_profile(&name).await?, format::clocks),
        Profile::Release => context.show(&client.release_profile().await?, format::clocks),
    }
}
