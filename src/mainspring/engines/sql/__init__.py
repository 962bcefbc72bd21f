"""The slices that both SQL stores have: each is written once, over named statements (`statements.Statements`)."""
