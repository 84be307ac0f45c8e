"""Events of users in a database: kept before they are acknowledged, read back in the order in which they were kept."""
