package storage

// Queries returns every query that was run so far.
func (db *DB) Queries() []string {
	var qs []string
	db.mu.Lock()
	for q := range db.stmts {
		qs = append(qs, q)
	}
	db.mu.Unlock()
	if db.writer != nil {
		for q := range db.writer.tx.stmts {
			qs = append(qs, q)
		}
	}
	return qs
}
