package store

import (
	"bytes"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
)

// TestArraysAreEncodedAsTheDriverDoes: what a group of commits is sent as is byte for byte what the driver makes of it.
func TestArraysAreEncodedAsTheDriverDoes(t *testing.T) {
	stock, ours := pgtype.NewMap(), pgtype.NewMap()
	encodeArrays(ours)
	for _, tt := range []struct {
		oid   uint32
		value any
	}{
		{pgtype.Int8ArrayOID, []int64{}},
		{pgtype.Int8ArrayOID, []int64{0, -1, 1 << 62}},
		{pgtype.Int8ArrayOID, []int32{4, 5}},
		{pgtype.Int8ArrayOID, [][]int64{{1, 2}, {3, 4}}},
		{pgtype.TextArrayOID, []string{}},
		{pgtype.TextArrayOID, []string{"", "a", "Grüße, \"x\" {}\\"}},
		{pgtype.TextArrayOID, []*string{nil, new("b")}},
		{pgtype.ByteaArrayOID, [][]byte{}},
		{pgtype.ByteaArrayOID, [][]byte{{}, {0, 255}, nil, bytes.Repeat([]byte("x"), 5000)}},
	} {
		for _, format := range []int16{pgtype.BinaryFormatCode, pgtype.TextFormatCode} {
			want, err := stock.Encode(tt.oid, format, tt.value, []byte("before"))
			if err != nil {
				t.Fatal(err)
			}
			got, err := ours.Encode(tt.oid, format, tt.value, []byte("before"))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%T in format %d is\n%q, %v, want\n%q", tt.value, format, got, err, want)
			}
		}
	}
}

// TestAnArrayIsWrittenInOneGo: the events of a group are copied once on their way to PostgreSQL, into memory
// that was made for them. The control is the driver's own way.
func TestAnArrayIsWrittenInOneGo(t *testing.T) {
	events := make([][]byte, 32)
	for i := range events {
		events[i] = bytes.Repeat([]byte("x"), 2048)
	}
	var value any = events
	allocs := func(m *pgtype.Map) float64 {
		return testing.AllocsPerRun(100, func() {
			if _, err := m.Encode(pgtype.ByteaArrayOID, pgtype.BinaryFormatCode, value, nil); err != nil {
				t.Fatal(err)
			}
		})
	}
	ours := pgtype.NewMap()
	encodeArrays(ours)
	if n := allocs(ours); n > 2 { // the race detector makes two of the one
		t.Errorf("an array takes %v allocations, want 1", n)
	}
	if n := allocs(pgtype.NewMap()); n < 10 {
		t.Errorf("the control takes %v allocations", n)
	}
}
