"""What the guard costs, measured in pairs with the guard off and on."""
