package store

import (
	"encoding/binary"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"
)

// A group of commits goes to PostgreSQL as arrays, one for each column. The driver encodes an array element by
// element, finds out by reflection how, and lets its buffer grow as it goes: every event was copied several
// times. Here an array is measured first, and written in one go, in the binary format of PostgreSQL: the number
// of dimensions, whether there are nulls, the type of the elements, how many they are, the index of the first,
// and then each behind its length.

// encodeArrays makes a connection encode the arrays of groups that way.
func encodeArrays(m *pgtype.Map) {
	for _, oid := range []uint32{pgtype.Int8ArrayOID, pgtype.TextArrayOID, pgtype.ByteaArrayOID} {
		if t, ok := m.TypeForOID(oid); ok {
			if c, ok := t.Codec.(*pgtype.ArrayCodec); ok {
				m.RegisterType(&pgtype.Type{Name: t.Name, OID: oid, Codec: arrayCodec{c}})
			}
		}
	}
}

// arrayCodec is the driver's, but for the arrays of groups.
type arrayCodec struct{ *pgtype.ArrayCodec }

// PlanEncode implements pgtype.Codec.
func (c arrayCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	ours := false
	switch value.(type) {
	case []int64:
		ours = oid == pgtype.Int8ArrayOID
	case []string:
		ours = oid == pgtype.TextArrayOID
	case [][]byte:
		ours = oid == pgtype.ByteaArrayOID
	}
	if ours && format == pgtype.BinaryFormatCode {
		return arrayPlan(c.ElementType.OID)
	}
	return c.ArrayCodec.PlanEncode(m, oid, format, value)
}

// arrayPlan encodes arrays whose elements are of this type.
type arrayPlan uint32

// Encode implements pgtype.EncodePlan.
func (p arrayPlan) Encode(value any, buf []byte) ([]byte, error) {
	switch v := value.(type) {
	case []int64:
		buf = p.begin(buf, len(v), 8*len(v), false)
		for _, n := range v {
			buf = binary.BigEndian.AppendUint64(appendLength(buf, 8), uint64(n))
		}
	case []string:
		size := 0
		for _, s := range v {
			size += len(s)
		}
		buf = p.begin(buf, len(v), size, false)
		for _, s := range v {
			buf = append(appendLength(buf, len(s)), s...)
		}
	case [][]byte:
		size, nulls := 0, false
		for _, b := range v {
			size, nulls = size+len(b), nulls || b == nil
		}
		buf = p.begin(buf, len(v), size, nulls)
		for _, b := range v {
			if b == nil {
				buf = appendLength(buf, -1)
				continue
			}
			buf = append(appendLength(buf, len(b)), b...)
		}
	}
	return buf, nil
}

// begin appends the head of an array of n elements, and makes room for all of it.
func (p arrayPlan) begin(buf []byte, n, size int, nulls bool) []byte {
	buf = slices.Grow(buf, 20+4*n+size)
	for _, v := range []int{1, int(flag(nulls)), int(p), n, 1} {
		buf = appendLength(buf, v)
	}
	return buf
}

func appendLength(buf []byte, n int) []byte { return binary.BigEndian.AppendUint32(buf, uint32(n)) }
