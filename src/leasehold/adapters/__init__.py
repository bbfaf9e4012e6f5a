"""Other people's contracts, kept on our stores, and our contract on theirs."""
