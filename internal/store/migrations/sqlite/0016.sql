-- Rewinds are rare events, which have an index already.
DROP INDEX events_rewound;
