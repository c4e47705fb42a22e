package store

import (
	"context"

	"github.com/outboard-dev/outboard"
)

// Worker is one registered process that claims sessions.
type Worker struct {
	ID   outboard.WorkerID
	Host string // as given to Register
}

const workersSQL = `SELECT id, host FROM workers ORDER BY id`

// Workers returns every registered process, those whose lease is over but not yet reaped included. It lets a
// server that starts on the host of a killed one Deregister it at once, instead of waiting for its lease to run
// out.
func (s *Store) Workers(ctx context.Context) ([]Worker, error) {
	return collect(ctx, s, "listing workers", scanWorker, workersSQL)
}

func scanWorker(sc scanner) (Worker, error) {
	var w Worker
	var id string
	err := sc.Scan(&id, &w.Host)
	w.ID = outboard.WorkerID(id)
	return w, err
}
