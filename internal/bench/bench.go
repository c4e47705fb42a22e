// Package bench measures Outboard against floors of the machine it runs on. It owns the rows of
// `outboard bench` and their bars.
//
// Invariants: a figure is reported only beside a floor that was measured in the same run (an
// fdatasync, a process spawn), as their ratio, because milliseconds of one machine say nothing
// about another. A missed bar is a row with ok=false, not an error.
//
// It never runs in a server. Start reading at Row.
package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Row is one measured line. P50, P99 and Floor are in Unit. Ratio is what Bar speaks of: P50 over Floor, or for
// rates the measured rate over the floor's. Bar is "" where none is set.
type Row struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	N     int     `json:"n"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Floor float64 `json:"floor"`
	Ratio float64 `json:"ratio"`
	Bar   string  `json:"bar"`
	OK    bool    `json:"ok"`
	Note  string  `json:"note,omitempty"`

	max    float64 // bar to set once the floor is known, 0 for none
	broken bool    // missed whatever the figure
	peer   string  // of a peer's: the row that is ours
}

// AtMost sets the bar "ratio <= max".
func (r Row) AtMost(max float64) Row {
	r.Bar, r.OK = fmt.Sprintf("<= %gx", max), r.Ratio <= max
	return r
}

// AtLeast sets the bar "ratio >= min".
func (r Row) AtLeast(min float64) Row {
	r.Bar, r.OK = fmt.Sprintf(">= %gx", min), r.Ratio >= min
	return r
}

// Latency makes a row from samples, in microseconds, beside the floor's median.
func Latency(name string, samples []time.Duration, floor time.Duration) Row {
	p50, p99 := quantile(samples, 0.5), quantile(samples, 0.99)
	return Row{Name: name, Unit: "us", N: len(samples), P50: micros(p50), P99: micros(p99), Floor: micros(floor),
		Ratio: ratio(float64(p50), float64(floor)), OK: true}
}

// Rate makes a row from operations per second beside the floor's rate. samples are the operations' latencies.
func Rate(name string, perSec, floorPerSec float64, samples []time.Duration) Row {
	return Row{Name: name, Unit: "ops/s", N: len(samples), P50: round(perSec),
		P99:   round(micros(quantile(samples, 0.99))),
		Floor: round(floorPerSec), Ratio: ratio(perSec,
			floorPerSec), OK: true, Note: "p50 is the rate, p99 the latency in us"}
}

// Write prints rows: a table for people, or one JSON object per line. It reports whether every bar was met.
func Write(w io.Writer, rows []Row, asJSON bool) (bool, error) {
	ok := true
	if asJSON {
		enc := json.NewEncoder(w)
		for _, r := range rows {
			ok = ok && r.OK
			if err := enc.Encode(r); err != nil {
				return ok, fmt.Errorf("writing row: %w", err)
			}
		}
		return ok, nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NAME\tUNIT\tN\tP50\tP99\tFLOOR\tRATIO\tBAR\tOK")
	for _, r := range rows {
		ok = ok && r.OK
		fmt.Fprintf(tw, "%s\t%s\t%d\t%g\t%g\t%g\t%.2f\t%s\t%s\n", r.Name, r.Unit, r.N, r.P50, r.P99, r.Floor, r.Ratio,
			cmp.Or(r.Bar, "-"), verdict(r))
	}
	if err := tw.Flush(); err != nil {
		return ok, fmt.Errorf("writing table: %w", err)
	}
	return ok, nil
}

func verdict(r Row) string {
	out := "ok"
	switch {
	case r.Bar == "":
		out = "-"
	case !r.OK:
		out = "MISSED"
	}
	if r.Note != "" {
		out += "  (" + strings.TrimSpace(r.Note) + ")"
	}
	return out
}

// quantile returns the q-quantile of samples, which it sorts in place; 0 without samples.
func quantile(samples []time.Duration, q float64) time.Duration {
	if len(samples) == 0 {
		return 0
	}
	slices.Sort(samples)
	return samples[min(int(float64(len(samples))*q), len(samples)-1)]
}

func micros(d time.Duration) float64 { return round(float64(d) / float64(time.Microsecond)) }

func round(f float64) float64 { return float64(int64(f*10+0.5)) / 10 }

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
