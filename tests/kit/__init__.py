"""What tests share: brokers, a fault proxy, a record-by-record checker."""
