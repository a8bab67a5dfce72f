"""What settings of transforms and ``transform.sql`` say of records and of topics."""
