package tuple_test

import (
	"fmt"
	"log"

	"fdbfifo/kv/tuple"
)

// Keys are tuples: their bytes are in the order of their elements.
func ExampleTuple_Pack() {
	second := tuple.Tuple{"seat", "LH 400", 2}.Pack()
	tenth := tuple.Tuple{"seat", "LH 400", 10}.Pack()
	fmt.Println(string(second) < string(tenth))
	t, err := tuple.Unpack(tenth)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(t, t[2].(int64))
	// Output:
	// true
	// ("seat", "LH 400", 10) 10
}

// Append packs without a Tuple in between.
func ExampleAppend() {
	prefix := tuple.Append(nil, "shop")
	fmt.Println(tuple.Printable(tuple.Append(prefix, "order", 7)))
	// Output: \x02shop\x00\x02order\x00\x15\x07
}
